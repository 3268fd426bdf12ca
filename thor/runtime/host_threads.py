"""NumPy's work on many small matrices, in several threads of the host.

LAPACK releases Python's lock. The threads that BLAS would start for a small matrix wait for each other longer than they
compute, so that it gets one: threadpoolctl sets this. Where that is not installed, the work is done one after another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

try:
    from threadpoolctl import ThreadpoolController
except ImportError:
    ThreadpoolController = None

#: The limit of BLAS holds for the whole process, and the one who sets it must be the one who takes it back.
_one_at_a_time = threading.Lock()

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Number of cores that this process may use: under Slurm or taskset fewer than the host has."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count() -> int:
    """Number of threads for the host's own work: one a core, at most what ``OMP_NUM_THREADS`` allows."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(available_cores(), int(asked)) if asked.isdecimal() and int(asked) else available_cores()


def in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The result of ``work`` for each item, in their order; BLAS has one thread within each.

    Another thread's call waits for this one's end, since both would use all cores.
    """
    controller = _controller()
    if controller is None:
        return [work(item) for item in items]
    with _one_at_a_time, controller.limit(limits=1, user_api="blas"), ThreadPoolExecutor(thread_count()) as pool:
        return list(pool.map(work, items))


def in_background(work: Callable[[], Result]) -> Callable[[], Result]:
    """Begin ``work`` in a thread of its own; the function returned waits for its result."""
    pool = ThreadPoolExecutor(1)
    running = pool.submit(work)
    pool.shutdown(wait=False)
    return running.result


@lru_cache(maxsize=1)
def _controller() -> Any:
    """What sets the threads of the BLAS libraries that are loaded; None without threadpoolctl."""
    return None if ThreadpoolController is None else ThreadpoolController()
