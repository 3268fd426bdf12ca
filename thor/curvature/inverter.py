"""The refresh of cached inverses from the factors' estimates.

    D = blocks(A) - blocks(U^T U),   X = (D + damping I)^-1,   s = X U^T,   t = (I + U s)^-1 s^T
    (D + damping I + U^T U)^-1 = X - s t                                              (Woodbury)

The cache holds X, s and t, or X - s t if the cut has ``whole_inverse``.

The b x b work runs on the host or on the device (backends.py), with blocks of one size from all layers in one batch.
The r x r work is small and runs on the host in float64. The damping of a block that is not positive definite is
multiplied by ``ESCALATION``, up to ``RETRIES`` times, and the block is counted; a factor that still fails keeps its
last good inverse. In a data-parallel job each rank inverts a part of the blocks, and an exchange collects the parts
(thor/distributed/exchange.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from thor.curvature import block_inverse
from thor.curvature.backends import algebra_of, split_by_stack
from thor.curvature.factor import Factor, assemble, low_rank_part, without_padding
from thor.curvature.refresh_job import Exchange, RefreshJob, RefreshMethod

RETRIES = 5
ESCALATION = 10.0


@dataclass
class Job(RefreshJob):
    """The inversion of one factor.

    Attributes:
        damping: [c], added to the diagonal of each copy.
        low_rank: U [c, r, n b (+1)]; None for plain blocks.
        blocks: D [c n, b, b].
    """

    symmetric = True

    damping: np.ndarray
    low_rank: np.ndarray | None = None
    blocks: Any = None


class Inverter(RefreshMethod):
    """Refreshes cached inverses; ``method`` is one of ``thor.device.INVERSES``."""

    beside_steps = False

    def __init__(self, method: str, exchange: Exchange | None = None):
        super().__init__(method, algebra_of(method), exchange)

    def take(self, jobs: list[Job], *, copy: bool) -> None:
        """Take the low-rank parts; the blocks are taken bucket by bucket, and by some methods on the device."""
        for job in jobs:
            job.low_rank = low_rank_part(job.factor)

    def compute(self, jobs: list[Job]) -> None:
        """Invert the blocks, those of one size from all factors together."""
        for bucket in _buckets(jobs):
            self._invert_bucket(bucket)

    def store(self, jobs: list[Job]) -> None:
        """Complete the inverses by their low-rank parts."""
        for bucket in _buckets(jobs):
            self._store_bucket(bucket)

    def _invert_bucket(self, jobs: list[Job]) -> None:
        blocks_by_job = self.algebra.blocks([job.factor for job in jobs], [job.low_rank for job in jobs])
        for job, blocks in zip(jobs, blocks_by_job, strict=True):
            job.blocks = blocks
        assigned = [job for job in jobs if job.count]
        for job, finite in zip(assigned, self.algebra.finite([job.blocks for job in assigned]), strict=True):
            job.failed = not finite
        live = [job for job in assigned if not job.failed]
        if not live:
            return
        stacks = [job.blocks if self.exchange is None else job.blocks[job.part] for job in live]
        owner = np.repeat(np.arange(len(live)), [job.count for job in live])
        damping = np.concatenate([np.repeat(job.damping, job.factor.cut.count)[job.part] for job in live])
        inverses, trusted = self._invert_until_trusted(stacks, damping, owner, live)
        for job, of_part, flags in zip(live, inverses, split_by_stack(trusted, stacks), strict=True):
            job.computed, job.failed = of_part, not flags.all()

    def _invert_until_trusted(self, stacks, damping, owner, jobs):
        damping = np.maximum(damping, np.finfo(np.float32).tiny)
        inverses, trusted = self._invert(stacks, damping)
        escalated = ~trusted
        for _ in range(RETRIES):
            if trusted.all():
                break
            damping = np.where(trusted, damping, damping * ESCALATION)
            inverses, trusted = self._invert(stacks, damping)
        for index in owner[escalated]:
            jobs[index].escalated += 1
        return inverses, trusted

    def _invert(self, stacks, damping):
        if stacks[0].shape[-1] > 1:
            return self.algebra.invert(stacks, damping)
        numbers = [self.algebra.to_host(blocks) for blocks in stacks]
        # blocks of one row: the diagonal factors of embeddings and normalisations
        inverses, trusted = block_inverse.reciprocals(np.concatenate(numbers), damping)
        return [self.algebra.from_host(each) for each in split_by_stack(inverses, numbers)], trusted

    def _store_bucket(self, jobs: list[Job]) -> None:
        """Add the new inverses, and the new probes of "block+rank", to the results; a non-finite inverse has failed."""
        thin = [(job, job.low_rank) for job in jobs if job.low_rank is not None]
        for job in (job for job in jobs if job.low_rank is None and job.factor.held):
            self._store_inverse(job, job.computed)
        held = [(job, u) for job, u in thin if job.factor.held]
        inside = [u[:, :, : job.factor.cut.padded].transpose(0, 2, 1) for job, u in held]
        products = self.algebra.times([job.computed for job, _ in held], inside)
        for (job, u), product in zip(held, products, strict=True):
            self._store_with_thin(job, u, product)
        # of all factors, held or not, because every rank has all estimates
        tracked = [(job, u) for job, u in thin if job.factor.cut.split == "block+rank" and not job.failed]
        probes = [np.linalg.qr(job.factor.beside.asnumpy().astype(np.float64))[0] for job, _ in tracked]
        products = self.algebra.times([job.blocks for job, _ in tracked], probes)
        for (job, u), probe, product in zip(tracked, probes, products, strict=True):
            job.results += _next_probe(job.factor, u, probe, product)

    def _store_with_thin(self, job: Job, u: np.ndarray, s: np.ndarray) -> None:
        """Add an inverse with a low-rank part to the results, from ``s`` = X U^T [c, n b, r] of the blocks."""
        cut = job.factor.cut
        s, t = self._woodbury(job, u, s)
        if not (np.isfinite(s).all() and np.isfinite(t).all()):
            job.failed = True
            return
        if cut.whole_inverse:
            self._store_inverse(job, self._as_one_matrix(job, s, t))
            return
        self._store_inverse(job, job.computed)
        values = self._bordered(job, s, t) if cut.bias_apart else (s, t)
        job.results += [
            (target, Tensor(value.astype(np.float32)))
            for target, value in zip(job.factor.cache[1:], values, strict=True)
        ]

    def _store_inverse(self, job: Job, blocks: Any) -> None:
        factor = job.factor
        job.results.append((factor.inverse, self.algebra.tensor(blocks.reshape(factor.cache_shapes[0]))))

    def _woodbury(self, job: Job, u: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Woodbury's s [c, m, r] and t [c, r, m] for all m rows, including that of a separate bias."""
        cut = job.factor.cut
        if cut.bias_apart:
            s = np.concatenate([s, u[:, :, -1:].transpose(0, 2, 1) * _bias_entry_inverse(job)], 1)
        small = np.eye(cut.rank) + u @ s
        return s, np.linalg.inv((small + small.transpose(0, 2, 1)) / 2) @ s.transpose(0, 2, 1)

    def _bordered(self, job: Job, s: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Woodbury's s and t of the inputs, with the bias's row t_b appended to t, and bias_inverse (factor.py)."""
        s, s_bias, t, t_bias = s[:, :-1], s[:, -1:], t[:, :, :-1], t[:, :, -1:]
        bias_inverse = np.concatenate([-t_bias, _bias_entry_inverse(job) - s_bias @ t_bias], 1)
        return s, np.concatenate([t, s_bias @ t], 1), bias_inverse

    def _as_one_matrix(self, job: Job, s: np.ndarray, t: np.ndarray) -> np.ndarray:
        """X - s t as one matrix [c, dim, dim]."""
        cut, copies = job.factor.cut, job.factor.copies
        blocks = self.algebra.to_host(job.computed).reshape(copies, cut.count, cut.size, cut.size)
        full = assemble(blocks, cut.thin)
        if cut.bias_apart:
            full[:, -1:, -1:] = _bias_entry_inverse(job)
        return without_padding(full - s @ t, cut)


def _buckets(jobs: list[Job]) -> Iterable[list[Job]]:
    """The jobs by block size."""
    buckets: dict[int, list[Job]] = {}
    for job in jobs:
        buckets.setdefault(job.factor.cut.size, []).append(job)
    return buckets.values()


def _next_probe(
    factor: Factor, u: np.ndarray, probe: np.ndarray, product: np.ndarray
) -> list[tuple[Parameter, Tensor]]:
    """New values of probe and beside after a step of subspace iteration, Q <- orth(Z) = ``probe``.

    The running average Z = A Q knows A only through the old Q. For the new Q it becomes (D + U^T U) Q, where
    ``product`` is D Q. D + U^T U has the factor's own diagonal blocks, so that later averages into Z stay consistent
    with them, and A - U^T U stays positive semi-definite. The estimate lacks the factor's ``scale``.
    """
    beside = (product + u.transpose(0, 2, 1) @ (u @ probe)) / factor.scale
    return [(factor.probe, Tensor(probe.astype(np.float32))), (factor.beside, Tensor(beside.astype(np.float32)))]


def _bias_entry_inverse(job: Job) -> np.ndarray:
    """The inverse [c, 1, 1] of a separate bias's entry in D, which is the damping alone."""
    damping = np.maximum(job.damping, np.finfo(np.float32).tiny)
    return (1.0 / damping).astype(np.float64)[:, None, None]
