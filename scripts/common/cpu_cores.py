"""This machine's cores, and how processes that run at once share them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence


def thread_limit(processes: int) -> dict[str, str]:
    """The environment in which so many processes at once do not take each other's cores."""
    return {"OMP_NUM_THREADS": str(max(1, available_cores() // processes))}


def disjoint_cores(processes: int) -> list[set[int]]:
    """A set of cores for each of so many processes; empty where there are too few, or the system binds none."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    cores, each = sorted(os.sched_getaffinity(0)), available_cores() // processes
    return [set(cores[index * each : (index + 1) * each]) for index in range(processes)] if each else []


def core_binder(apart: Sequence[set[int]]) -> Callable[[], None]:
    """What each thread of a pool calls first: it, and so every process that it starts, gets the next set of cores.

    With the threads' number alone, two trainings still meet on one core while another idles.
    """
    left = iter(apart)

    def bind() -> None:
        cores = next(left, None)
        if cores is not None:
            os.sched_setaffinity(0, cores)  # 0 is this thread

    return bind


def available_cores() -> int:
    """Cores that this process may use: under Slurm or taskset not all that the host has."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
