"""How many of a task's runs are done, and how long the others will take."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Pace:
    """The runs of a task.

    Attributes:
        total: All of them.
        jobs: How many run at once.
        done: Those that are finished.
        seconds: Of each that was trained in this process; one found finished tells nothing of how long the next takes.
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
        """Count a run that took so long; what there is to say of it and of those to come."""
        with self._lock:
            self.done += 1
            self.seconds.append(seconds)
            words = f"{seconds:.0f} s (run {self.done} of {self.total}"
            mean = sum(self.seconds) / len(self.seconds)
            left = mean * (self.total - self.done) / self.jobs
            return words + (f", about {max(1, round(left / 60))} min left)" if left else ")")
