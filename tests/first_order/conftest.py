"""Fixtures of the tests of first_order/."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import pytest

from thor.runtime.modes import in_mode


@pytest.fixture(autouse=True)
def _mode_stays():
    """Every test starts in PYNATIVE_MODE and leaves the mode as it was."""
    with in_mode(ms.PYNATIVE_MODE):
        yield


@pytest.fixture(scope="session")
def tensorflow():
    """tensorflow(function of tensorflow_worker, *arguments), in one process for all tests."""
    command = [sys.executable, str(Path(__file__).parent / "tensorflow_worker.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def ask(name, *arguments):
            pickle.dump((name, arguments), process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)

        yield ask
        process.stdin.close()
