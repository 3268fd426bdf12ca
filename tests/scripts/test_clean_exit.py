"""After success, a program leaves nothing on stderr: no traceback and no `Exception ignored in` as Python ends."""

import subprocess
import sys

import pytest

from scripts.settings.yaml_config import save_config
from tests.support.paths import ROOT
from tests.support.tiny_runs import tiny_settings

pytestmark = [pytest.mark.slow, pytest.mark.jobs]


def stderr_of(program, *arguments, folder):
    """What a program has written to stderr; its exit status is 0."""
    command = [sys.executable, str(ROOT / "scripts" / f"{program}.py"), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("optimizer", ["thor", "momentum"])
def test_stderr_is_empty_after_success(tmp_path, optimizer):
    settings = tiny_settings(tmp_path, optimizer, epochs=1, ema=0.5)
    config, run = tmp_path / "c.yaml", settings.out
    save_config(settings, config)
    assert stderr_of("train", "--config", config, "--dry-run", folder=tmp_path) == ""
    assert stderr_of("train", "--config", config, folder=tmp_path) == ""
    assert stderr_of("eval", run, folder=tmp_path) == ""
    assert stderr_of("export", run, folder=tmp_path) == ""
    assert stderr_of("compare", run, folder=tmp_path) == ""
    assert stderr_of("plot", run, folder=tmp_path) == ""
