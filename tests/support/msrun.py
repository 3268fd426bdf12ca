"""Starts a program as a job of several processes on this machine, and waits for its end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.cluster.msrun import ROOT, run_here


def run_job(folder: Path, script: str, *arguments: object, ranks: int = 2, timeout: float = 300) -> None:
    """Run a program (its path from the repository's root) under msrun in a folder; the logs are told if it fails."""
    run_here(ROOT / script, arguments, devices=ranks, folder=folder, seconds=timeout)


def starts_processes(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts such a job: ``make test-slow`` runs it, and nothing beside it."""
    return pytest.mark.slow(pytest.mark.jobs(test))
