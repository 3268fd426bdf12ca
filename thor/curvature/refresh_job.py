"""The work of a refresh for one factor, and how ranks divide it: what inverses and eigenbases have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from mindspore import Parameter, Tensor, ops

from thor.curvature.backends import Algebra
from thor.curvature.factor import FactorEstimate


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


class RefreshMethod(Protocol):
    """What makes inverses or eigenbases of factors.

    Attributes:
        method: the name of the algorithm.
        exchange: divides the work among the ranks of a job; None if each process does all of it.
        seconds: duration of each call of :meth:`refresh`.
    """

    method: str
    exchange: Exchange | None
    seconds: list[float]

    def refresh(self, jobs: list[Any]) -> None:
        """Compute the results of each job; no Parameter changes until the jobs are committed."""
