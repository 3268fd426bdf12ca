"""Starts a program as a job of several processes on this machine, and waits for its end."""

import os
import subprocess
from pathlib import Path

from scripts.cluster.msrun import ROOT, Job, free_port


def run_job(folder: Path, script: str, *arguments: object, ranks: int = 2, timeout: float = 300) -> None:
    """Run a program (its path from the repository's root) under msrun in a folder; the logs are told if it fails."""
    job = Job(
        script=ROOT / script,
        arguments=tuple(map(str, arguments)),
        log_dir=folder / "log",
        devices=ranks,
        port=free_port(),
    )
    done = subprocess.run(
        job.command, cwd=folder, env=job.environment(os.environ), capture_output=True, text=True, timeout=timeout
    )
    logs = "\n".join(f"{p.name}:\n{p.read_text()[-2000:]}" for p in sorted(job.log_dir.glob("worker*.log")))
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-1000:]}\n{logs}"
