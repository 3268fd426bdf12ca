"""Time of a run by phase: number of steps and seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

COMPILING = "compiling"


class Phases:
    """Sums times by phase. What MindSpore's compiler takes of a step counts as `compiling`."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def restore(self, sums: dict[str, list[float]]) -> None:
        """Continue with the sums of an earlier process."""
        self._sums = {name: list(pair) for name, pair in sums.items()}

    def sums(self) -> dict[str, list[float]]:
        """Count and total seconds of each phase."""
        return {name: [count, round(seconds, 4)] for name, (count, seconds) in self._sums.items()}

    @property
    def compiling(self) -> float:
        """Seconds that MindSpore's compiler took."""
        return round(self._sums.get(COMPILING, (0, 0.0))[1], 3)

    def add(self, name: str, seconds: float, compiling: float = 0.0) -> None:
        """Add one occurrence of a phase, with the seconds that MindSpore's compiler took of it."""
        parts = {name: seconds - compiling} | ({COMPILING: compiling} if compiling else {})
        for part, taken in parts.items():
            pair = self._sums.setdefault(part, [0, 0.0])
            pair[0] += 1
            pair[1] += taken

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the enclosed block."""
        begin = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - begin)

    def timed(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; the time to wait for each is added to a phase."""
        iterator = iter(items)
        while True:
            begin = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self.add(name, time.perf_counter() - begin)
            yield item
