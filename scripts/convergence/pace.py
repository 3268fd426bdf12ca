"""Counts the finished runs of a task, and estimates the time of the remaining ones."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Pace:
    """Progress of a task's runs.

    Attributes:
        total: Number of runs.
        jobs: Number of runs that train at the same time.
        done: Number of finished runs.
        seconds: Duration of each run that this process has trained. Runs that were already finished do not count.
    """

    total: int = 1
    jobs: int = 1
    done: int = 0
    seconds: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def found(self) -> None:
        """Count a run that was finished before."""
        with self._lock:
            self.done += 1

    def trained(self, seconds: float) -> str:
        """Count a run that took `seconds`; return a message with its duration and the time left."""
        with self._lock:
            self.done += 1
            self.seconds.append(seconds)
            words = f"{seconds:.0f} s (run {self.done} of {self.total}"
            mean = sum(self.seconds) / len(self.seconds)
            left = mean * (self.total - self.done) / self.jobs
            return words + (f", about {max(1, round(left / 60))} min left)" if left else ")")
