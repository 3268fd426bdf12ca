"""The CPU cores of this machine, and how concurrent processes share them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from thor.runtime.host_threads import available_cores


def thread_limit(processes: int) -> dict[str, str]:
    """Environment that limits the threads of each of so many concurrent processes to its share of the cores."""
    return {"OMP_NUM_THREADS": str(max(1, available_cores() // processes))}


def disjoint_cores(processes: int) -> list[set[int]]:
    """Disjoint sets of cores, one per process; empty if there are too few cores or the system has no CPU affinity."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    cores, each = sorted(os.sched_getaffinity(0)), available_cores() // processes
    return [set(cores[index * each : (index + 1) * each]) for index in range(processes)] if each else []


def core_binder(apart: Sequence[set[int]]) -> Callable[[], None]:
    """An initializer for a thread pool that binds each thread, and the processes it starts, to the next set of cores.

    A limit on the number of threads is not enough: two trainings could share one core while another is idle.
    """
    left = iter(apart)

    def bind() -> None:
        cores = next(left, None)
        if cores is not None:
            os.sched_setaffinity(0, cores)  # 0 is this thread

    return bind
