"""Starts a program as a job of several processes on this machine, and waits for its end."""

from pathlib import Path

from scripts.cluster.msrun import ROOT, run_here


def run_job(folder: Path, script: str, *arguments: object, ranks: int = 2, timeout: float = 300) -> None:
    """Run a program (its path from the repository's root) under msrun in a folder; the logs are told if it fails."""
    run_here(ROOT / script, arguments, devices=ranks, folder=folder, seconds=timeout)
