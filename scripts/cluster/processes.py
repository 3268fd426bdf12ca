"""The processes of a job on this host: found by a variable in their environment, and ended together."""

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
    """Yield every living process of a job. Child processes of any depth count, since they inherit the environment."""
    for process in psutil.process_iter():
        with suppress(*_GONE):
            if process.environ().get(MARK) == job and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def roles(msrun: int) -> dict[str, psutil.Process]:
    """The children of the process `msrun`, by role: `scheduler`, or the rank of a worker as a string."""
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
    """Send SIGTERM; training then writes a checkpoint and ends."""
    for process in processes:
        with suppress(*_GONE):
            process.send_signal(signal.SIGTERM)


def end_with_parent() -> None:
    """Have this process killed when its parent dies (Linux only). Called between fork and exec.

    So msrun dies with its launcher. The workers notice that msrun is gone, write a checkpoint and end.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_all(job: str, patience: float = 10.0) -> int:
    """Kill all processes of a job, and wait until they are gone.

    Returns:
        How many are left after `patience` seconds; these are in an uninterruptible wait.
    """
    deadline = time.monotonic() + patience
    while left := list(members(job)):
        for process in left:
            with suppress(*_GONE):
                process.kill()
        if time.monotonic() > deadline:
            return len(left)
        psutil.wait_procs(left, timeout=0.5)
    return 0
