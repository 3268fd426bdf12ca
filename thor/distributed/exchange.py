"""A refresh shared among ranks: each rank computes its pieces, then every rank that holds a layer gets the results.

All ranks decide by rank 0's traces, so they refresh the same layers. Three exchanges follow:

1. A sum over all ranks of the results of each job (blocks with more damping, failures) and of the seconds of each rank,
   so that all ranks make the same decisions.
2. The results, of inverses the triangles, within each column.
3. A sum over all ranks of late failures, found while the results were stored.

Every rank of a column reads the results from the message, its own pieces too, so all copies have the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from thor.curvature.backends import Algebra
from thor.curvature.refresh_job import RefreshJob
from thor.distributed.packing import packed, packed_length, unpacked
from thor.distributed.placement import FactorWork, Piece, Placement, block_cost, place
from thor.distributed.ranks import Ranks
from thor.factors.blocks import Cut

logger = logging.getLogger("thor")

#: Seconds between the fastest and the slowest rank above which a refresh logs a warning. It stays well below 30 s,
#: after which MindSpore's CPU collectives stop waiting for the last rank.
SKEW_WARNING = 10.0


def placement_of(cuts: Sequence[tuple[int, Cut, Cut]], ranks: Ranks) -> Placement:
    """The placement of layers, each given as (copies, cut of A, cut of G), on the ranks of a job."""
    work = [
        FactorWork(layer, side, copies * cut.count, block_cost(cut.size))
        for layer, (copies, *pair) in enumerate(cuts)
        for side, cut in zip("ag", pair, strict=True)
    ]
    return place(work, ranks.grid, per=ranks.sharing.per)


class PieceExchange:
    """Shares each refresh among the ranks of a job.

    Args:
        ranks: the ranks, as this process sees them.
        placement: which rank inverts which blocks.
        names: of the layers, in the placement's order.
    """

    def __init__(self, ranks: Ranks, placement: Placement, names: Sequence[str]):
        self.ranks, self.placement = ranks, placement
        self._pieces: dict[str, list[Piece]] = {}
        for piece in placement.pieces:
            self._pieces.setdefault(f"{names[piece.layer]}.{piece.side}", []).append(piece)
        self.seconds = np.zeros(ranks.grid.ranks, np.float32)  # that each rank spent on inversions at the last refresh

    def divide(self, jobs: Sequence[RefreshJob]) -> None:
        """Set each job's ``part`` to the blocks that this rank computes: a consecutive run, or none."""
        for job in jobs:
            mine = [piece for piece in self._pieces[job.factor.name] if piece.rank == self.ranks.rank]
            job.part = slice(mine[0].first, mine[0].last) if mine else slice(0, 0)

    def share(self, jobs: Sequence[RefreshJob], seconds: float, algebra: Algebra) -> None:
        """Send flags and seconds to all ranks, and results to the ranks of this column.

        Afterwards ``computed`` of each held job that has not failed has all blocks [copies * count, b, b].
        """
        self._share_flags(jobs, seconds)
        members = self.ranks.grid.column_ranks(self.ranks.own_column)
        held = [job for job in jobs if job.factor.held and not job.failed]
        order = {rank: [(job, p) for job in held for p in self._pieces[job.factor.name] if p.rank == rank]
                 for rank in members}  # fmt: skip
        lengths = [sum(_length(job, piece) for job, piece in order[r]) for r in members]
        own = [packed(algebra.to_host(job.computed), job.symmetric) for job, _ in order[self.ranks.rank]]
        mine = np.concatenate(own) if own else np.zeros(0, np.float32)
        stacks = {id(job): np.empty((job.factor.copies * job.factor.cut.count, *[job.factor.cut.size] * 2), np.float32)
                  for job in held}  # fmt: skip
        for rank, flat in zip(members, self.ranks.gathered_in_column(mine, lengths), strict=True):
            first = 0
            for job, piece in order[rank]:
                last, size = first + _length(job, piece), job.factor.cut.size
                stacks[id(job)][piece.first : piece.last] = unpacked(flat[first:last], size, job.symmetric)
                first = last
        for job in held:
            job.computed = algebra.from_host(stacks[id(job)])

    def _share_flags(self, jobs: Sequence[RefreshJob], seconds: float) -> None:
        """Sum ``escalated`` and ``failed`` of each job over all ranks, and collect the seconds of each rank."""
        count = len(jobs)
        found = np.zeros(2 * count + len(self.seconds), np.float32)
        found[:count] = [job.escalated for job in jobs]
        found[count : 2 * count] = [job.failed for job in jobs]
        found[2 * count + self.ranks.rank] = seconds
        found = self.ranks.total(found)
        for job, escalated, failed in zip(jobs, found[:count], found[count : 2 * count], strict=True):
            job.escalated, job.failed = int(escalated), bool(failed)
        self.seconds = found[2 * count :]
        if self.skew > SKEW_WARNING:
            logger.warning(
                "the slowest rank inverted for %.1f s, the fastest for %.1f s: a collective may give up waiting; "
                "share by blocks, Sharing(per='block'), or take smaller blocks",
                self.seconds.max(),
                self.seconds.min(),
            )

    @property
    def skew(self) -> float:
        """Seconds that the fastest rank waited for the slowest one at the last refresh."""
        return float(self.seconds.max() - self.seconds.min())

    def settle(self, jobs: Sequence[RefreshJob]) -> None:
        """Mark each job that failed on any rank as failed on all."""
        failed = np.array([0.0, *(job.failed for job in jobs)], np.float32)
        for job, count in zip(jobs, self.ranks.total(failed)[1:], strict=True):
            job.failed = bool(count)


def _length(job: RefreshJob, piece: Piece) -> int:
    """Numbers in a message for the results of one piece."""
    return packed_length(piece.last - piece.first, job.factor.cut.size, job.symmetric)
