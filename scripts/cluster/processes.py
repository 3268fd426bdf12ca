"""The processes of a job on this host: found by a mark in their environment, ended all together."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil

MARK = "THOR_JOB"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)


def members(job: str) -> Iterator[psutil.Process]:
    """Every living process that was started for a job, by whomever: its environment is inherited."""
    for process in psutil.process_iter():
        with suppress(*_GONE):
            if process.environ().get(MARK) == job and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def roles(msrun: int) -> dict[str, psutil.Process]:
    """The children of msrun by what they are: `scheduler`, or the rank of a worker as a text."""
    found: dict[str, psutil.Process] = {}
    with suppress(*_GONE):
        for process in psutil.Process(msrun).children():
            with suppress(*_GONE):
                own = process.environ()
                if own.get("MS_ROLE") == "MS_SCHED":
                    found["scheduler"] = process
                elif own.get("MS_ROLE") == "MS_WORKER" and "RANK_ID" in own:
                    found[own["RANK_ID"]] = process
    return found


def status(process: psutil.Process) -> str:
    """`alive`, `stopped` (by a signal) or `gone`."""
    try:
        state = process.status()
    except _GONE:
        return "gone"
    if state == psutil.STATUS_ZOMBIE:
        return "gone"
    return "stopped" if state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP) else "alive"


def ask_to_end(processes: list[psutil.Process]) -> None:
    """SIGTERM, which training answers with a checkpoint."""
    for process in processes:
        with suppress(*_GONE):
            process.send_signal(signal.SIGTERM)


def end_with_parent() -> None:
    """Between fork and exec: this process is killed when its parent dies (Linux; nothing elsewhere).

    For msrun, when its launcher is killed; the workers notice that msrun is gone, and end with a checkpoint.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_all(job: str, patience: float = 10.0) -> int:
    """Kill all of a job's processes and wait until they are gone; how many are left (in an uninterruptible wait)."""
    deadline = time.monotonic() + patience
    while left := list(members(job)):
        for process in left:
            with suppress(*_GONE):
                process.kill()
        if time.monotonic() > deadline:
            return len(left)
        psutil.wait_procs(left, timeout=0.5)
    return 0
