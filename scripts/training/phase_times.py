"""Where the time of a run goes: steps and seconds of each phase."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

COMPILING = "compiling"


class Phases:
    """Adds up times. Steps in which MindSpore compiles go under `compiling`: the first of each kind, and some later."""

    _STEPS = ("step", "plain", "curvature", "refresh")

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._seen: set[str] = set()

    def restore(self, sums: dict[str, list[float]]) -> None:
        """Go on from the sums of an earlier process."""
        self._sums = {name: list(pair) for name, pair in sums.items()}

    def sums(self) -> dict[str, list[float]]:
        """How often each phase came, and its seconds in all."""
        return {name: [count, round(seconds, 4)] for name, (count, seconds) in self._sums.items()}

    @property
    def compiling(self) -> float:
        """Seconds of the steps in which MindSpore compiled."""
        return round(self._sums.get(COMPILING, (0, 0.0))[1], 3)

    def add(self, name: str, seconds: float, compiled: bool = False) -> None:
        """One more of a phase; `compiled` tells of a step that it compiled though it was not the first of its kind."""
        first = name in self._STEPS and name not in self._seen
        self._seen.add(name)
        if first or compiled:
            name = COMPILING
        pair = self._sums.setdefault(name, [0, 0.0])
        pair[0] += 1
        pair[1] += seconds

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent within."""
        begin = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - begin)

    def timed(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The items, the wait for each added to a phase."""
        iterator = iter(items)
        while True:
            begin = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self.add(name, time.perf_counter() - begin)
            yield item
