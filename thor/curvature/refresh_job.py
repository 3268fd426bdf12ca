"""The work of a refresh for one factor, and how ranks divide it: what inverses and eigenbases have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

from mindspore import Parameter, Tensor, ops

from thor.curvature.backends import Algebra
from thor.curvature.factor import FactorEstimate
from thor.runtime.host_threads import in_background


@dataclass
class RefreshJob:
    """What is made of one factor at a refresh.

    Attributes:
        factor: the factor.
        part: the blocks, among all c n, that this process computes.
        escalated: number of blocks that needed more damping.
        failed: True if there is no result.
        results: new values of the factor's Parameters. They are stored by :meth:`commit`, so that the two factors of a
            layer change together or not at all.
        computed: results of the blocks in ``part``, [., b, b]; after an exchange, of all blocks.
    """

    symmetric: ClassVar[bool]  # whether the results are symmetric matrices, of which an exchange sends triangles

    factor: Any
    part: slice = field(default_factory=lambda: slice(None), kw_only=True)
    escalated: int = field(default=0, kw_only=True)
    failed: bool = field(default=False, kw_only=True)
    results: list[tuple[Parameter, Tensor]] = field(default_factory=list, kw_only=True)
    computed: Any = field(default=None, kw_only=True)

    @property
    def count(self) -> int:
        """Number of blocks that this process computes."""
        factor: FactorEstimate = self.factor
        return len(range(factor.copies * factor.cut.count)[self.part])

    def commit(self) -> None:
        """Assign the results to the factor's Parameters.

        ``set_data`` would replace their storage, but a compiled graph goes on reading the storage it was compiled with.
        """
        for target, value in self.results:
            ops.assign(target, value)


class Exchange(Protocol):
    """The division of a refresh among the ranks of a job."""

    def divide(self, jobs: Sequence[RefreshJob]) -> None:
        """Set each job's ``part``: the blocks that this rank computes."""

    def share(self, jobs: Sequence[RefreshJob], seconds: float, algebra: Algebra) -> None:
        """Give every rank the flags of each job, and the ranks that hold a factor the results of all its blocks."""

    def settle(self, jobs: Sequence[RefreshJob]) -> None:
        """Mark each job that failed on any rank as failed on all."""


class RefreshMethod(ABC):
    """What makes inverses or eigenbases of factors.

    Args:
        algorithm: its name.
        algebra: computes with blocks.
        exchange: divides the work among the ranks of a job; None if each process does all of it.

    Attributes:
        beside_steps: whether it may compute while training goes on, for it needs nothing but copies on the host.
        seconds: for each refresh, how long training waited for it.
    """

    beside_steps: ClassVar[bool]

    def __init__(self, algorithm: str, algebra: Algebra, exchange: Exchange | None = None):
        self.algorithm, self.algebra, self.exchange = algorithm, algebra, exchange
        self.seconds: list[float] = []

    def refresh(self, jobs: list[Any]) -> None:
        """Make the results of each job; no Parameter changes until the jobs are committed."""
        self.begin(jobs)()

    def begin(self, jobs: list[Any], *, beside: bool = False) -> Callable[[], None]:
        """Begin to make the results of each job, and return the function that completes them.

        With ``beside`` they are computed in a thread, from copies of the estimates.
        """
        start = time.perf_counter()
        if self.exchange is not None:
            self.exchange.divide(jobs)
        self.take(jobs, copy=beside)
        compute = partial(self._timed, jobs)
        computed = in_background(compute) if beside else partial(float, compute())
        return partial(self._complete, jobs, computed, time.perf_counter() - start)

    def _timed(self, jobs: list[Any]) -> float:
        """Compute, and return the seconds that it took."""
        start = time.perf_counter()
        self.compute(jobs)
        return time.perf_counter() - start

    def _complete(self, jobs: list[Any], computed: Callable[[], float], begun: float) -> None:
        """Wait for what is computed, exchange and store it; ``begun`` is the seconds until now."""
        start = time.perf_counter()
        seconds = computed()
        if self.exchange is not None:
            self.exchange.share(jobs, seconds, self.algebra)
        self.store([job for job in jobs if not job.failed])
        if self.exchange is not None:
            self.exchange.settle(jobs)
        self.seconds.append(begun + time.perf_counter() - start)

    @abstractmethod
    def take(self, jobs: list[Any], *, copy: bool) -> None:
        """Take from the estimates what is to be computed with, with ``copy`` so that they may change meanwhile."""

    @abstractmethod
    def compute(self, jobs: list[Any]) -> None:
        """Set ``computed`` of each job for its ``part`` of the blocks, or ``failed``."""

    @abstractmethod
    def store(self, jobs: list[Any]) -> None:
        """Add the new values of the factors' Parameters to the results of each job; what is not finite has failed."""
