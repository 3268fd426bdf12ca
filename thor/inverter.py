"""From a factor's estimate to its cached inverse, on the device that suits it.

    D = blocks(A) - blocks(U^T U),   X = (D + damping I)^-1,   s = X U^T,   t = s (I + U s)^-1
    (D + damping I + U^T U)^-1 = X - s t^T                                            (Woodbury)

The b x b work runs where it is fast (see device.py), blocks of one size from all layers stacked into one batch; the
r x r work is tiny and runs on the host in float64. A block that is not positive definite gets ten times more damping,
up to five times, and is counted; a factor that still fails keeps its last good inverse.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from thor import inverse
from thor.layers import Factor, directions

RETRIES = 5
ESCALATION = 10.0
BATCH_STEP = 16  # device batches are padded to a multiple of this, so that few shapes are compiled


@dataclass
class Job:
    """One factor to invert with ``damping`` [c].

    Afterwards ``escalated`` counts the blocks that needed more damping, ``failed`` says that there is no inverse, and
    ``results`` holds the new values until :meth:`commit`, so that a layer's two factors change together or not at all.
    """

    factor: Factor
    damping: np.ndarray
    escalated: int = 0
    failed: bool = False
    results: list[tuple[Parameter, Tensor]] = field(default_factory=list)

    def commit(self) -> None:
        """Make the new inverse the cached one.

        By assignment: a compiled graph goes on reading the storage it was compiled with, which ``set_data`` replaces.
        """
        for target, value in self.results:
            ops.assign(target, value)


class HostAlgebra:
    """NumPy and LAPACK: the CPU's way, where tensors lie in host memory already."""

    def blocks(self, factor: Factor, u: np.ndarray | None):
        """D [c n, b, b]."""
        blocks = factor.blocks.asnumpy()
        if u is not None:
            parts = _by_block(factor, u)
            blocks = blocks - parts.transpose(0, 1, 3, 2) @ parts
        return blocks.reshape(-1, factor.cut.size, factor.cut.size)

    def invert(self, stacked: list, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inverses and trust of a stack of blocks."""
        return inverse.invert_on_host(np.concatenate(stacked), damping)

    def times(self, blocks, thin: np.ndarray) -> np.ndarray:
        """Blocks [c n, b, b] as a block-diagonal matrix times [c, n b, r], in float64."""
        copies, rows, rank = thin.shape
        size = blocks.shape[-1]
        product = blocks @ thin.astype(np.float32).reshape(-1, size, rank)
        return product.reshape(copies, rows, rank).astype(np.float64)

    def is_finite(self, blocks) -> bool:
        """Whether every entry is a number."""
        return bool(np.isfinite(blocks.sum(dtype=np.float64)))

    def tensor(self, blocks) -> Tensor:
        """As a tensor."""
        return Tensor(np.ascontiguousarray(blocks, np.float32))


class DeviceAlgebra:
    """The same with MindSpore's operators, compiled once per shape: the accelerators' way, which runs on a CPU too."""

    def __init__(self, method: str):
        @ms.jit
        def cholesky(blocks, damping):
            return inverse.invert_by_cholesky(blocks, damping)

        @ms.jit
        def newton_schulz(blocks, damping):
            return inverse.invert_by_newton_schulz(blocks, damping)

        @ms.jit
        def compiled_correction(blocks, parts):
            return blocks - ops.BatchMatMul(transpose_a=True)(parts, parts)

        @ms.jit
        def compiled_product(blocks, thin):
            return ops.bmm(blocks, thin)

        self._inverse = cholesky if method == "cholesky" else newton_schulz
        self._careful, self._correction, self._product = newton_schulz, compiled_correction, compiled_product

    def blocks(self, factor: Factor, u: np.ndarray | None):
        cut = factor.cut
        blocks = ops.reshape(factor.blocks, (-1, cut.size, cut.size))
        if u is None:
            return blocks
        parts = _by_block(factor, u).reshape(-1, cut.rank, cut.size)
        return self._correction(blocks, self.tensor(parts))

    def invert(self, stacked: list, damping: np.ndarray):
        size = stacked[0].shape[-1]
        used = len(damping)
        spare = -used % BATCH_STEP
        if spare:
            filler = np.broadcast_to(np.eye(size, dtype=np.float32), (spare, size, size))
            stacked = [*stacked, self.tensor(filler)]
        batch = ops.cat(tuple(stacked), 0) if len(stacked) > 1 else stacked[0]
        damping = Tensor(np.pad(damping, (0, spare)).astype(np.float32))
        try:
            inverses, trusted = self._inverse(batch, damping)
            trusted = trusted.asnumpy()
        except (RuntimeError, ValueError):
            # ops.cholesky may raise where a block is not positive definite, and does not say which; this one does
            inverses, trusted = self._careful(batch, damping)
            trusted = trusted.asnumpy()
        return inverses, trusted[:used] > 0

    def times(self, blocks, thin: np.ndarray) -> np.ndarray:
        size, rank = blocks.shape[-1], thin.shape[-1]
        product = self._product(blocks, self.tensor(thin.reshape(-1, size, rank)))
        return product.asnumpy().reshape(thin.shape).astype(np.float64)

    def is_finite(self, blocks) -> bool:
        return bool(np.isfinite(ops.ReduceSum()(blocks).asnumpy()))

    def tensor(self, blocks) -> Tensor:
        return blocks if isinstance(blocks, Tensor) else Tensor(np.ascontiguousarray(blocks, np.float32))


def _by_block(factor: Factor, u: np.ndarray) -> np.ndarray:
    """U [c, r, n b (+1)] as [c, n, r, b] float32, without a bias that stands apart."""
    cut = factor.cut
    inside = u[:, :, : cut.padded].astype(np.float32)
    return inside.reshape(factor.copies, cut.rank, cut.count, cut.size).transpose(0, 2, 1, 3)


class Inverter:
    """Refreshes cached inverses. ``method`` is one of ``thor.device.INVERSES``."""

    def __init__(self, method: str):
        self.method = method
        self.algebra: HostAlgebra | DeviceAlgebra = HostAlgebra() if method == "lapack" else DeviceAlgebra(method)

    def refresh(self, jobs: list[Job]) -> None:
        """Invert every job's factor; nothing changes until the jobs are committed."""
        buckets: dict[int, list[Job]] = {}
        for job in jobs:
            buckets.setdefault(job.factor.cut.size, []).append(job)
        for bucket in buckets.values():
            self._refresh_bucket(bucket)

    def _refresh_bucket(self, jobs: list[Job]) -> None:
        beside = [directions(job.factor) for job in jobs]
        corrected = [self.algebra.blocks(job.factor, u) for job, u in zip(jobs, beside, strict=True)]
        for job, blocks in zip(jobs, corrected, strict=True):
            job.failed = not self.algebra.is_finite(blocks)
        live = [i for i, job in enumerate(jobs) if not job.failed]
        if not live:
            return
        stacked = [corrected[i] for i in live]
        owner = np.concatenate([np.full(len(blocks), i) for i, blocks in zip(live, stacked, strict=True)])
        damping = np.concatenate([np.repeat(jobs[i].damping, jobs[i].factor.cut.count) for i in live])
        inverses, trusted = self._invert_until_trusted(stacked, damping, owner, jobs)
        first = 0
        for i, blocks in zip(live, stacked, strict=True):
            last = first + len(blocks)
            jobs[i].failed = not trusted[first:last].all()
            if not jobs[i].failed:
                self._store(jobs[i], inverses[first:last], beside[i], blocks)
            first = last

    def _invert_until_trusted(self, stacked, damping, owner, jobs):
        damping = np.maximum(damping, np.finfo(np.float32).tiny)
        inverses, trusted = self._invert(stacked, damping)
        escalated = ~trusted
        for _ in range(RETRIES):
            if trusted.all():
                break
            damping = np.where(trusted, damping, damping * ESCALATION)
            inverses, trusted = self._invert(stacked, damping)
        for index in owner[escalated]:
            jobs[index].escalated += 1
        return inverses, trusted

    def _invert(self, stacked, damping):
        if stacked[0].shape[-1] > 1:
            return self.algebra.invert(stacked, damping)
        numbers = [blocks if isinstance(blocks, np.ndarray) else blocks.asnumpy() for blocks in stacked]
        inverses, trusted = inverse.reciprocals(np.concatenate(numbers), damping)  # of embeddings and normalisations
        return inverses if self.method == "lapack" else self.algebra.tensor(inverses), trusted

    def _store(self, job: Job, x, u: np.ndarray | None, blocks) -> None:
        factor = job.factor
        if u is not None:
            s = self.algebra.times(x, u[:, :, : factor.cut.padded].transpose(0, 2, 1))
            if factor.bias_inverse is not None:
                alone = 1.0 / np.maximum(job.damping, np.finfo(np.float32).tiny)  # its row of D is the damping
                s = np.concatenate([s, u[:, :, -1:].transpose(0, 2, 1) * alone[:, None, None]], 1)
                job.results.append((factor.bias_inverse, Tensor(alone.astype(np.float32))))
            small = np.eye(factor.cut.rank) + u @ s
            t = s @ np.linalg.inv((small + small.transpose(0, 2, 1)) / 2)
            if not (np.isfinite(s).all() and np.isfinite(t).all()):
                job.failed = True
                return
            job.results += [(factor.s, Tensor(s.astype(np.float32))), (factor.t, Tensor(t.astype(np.float32)))]
            if factor.cut.split == "block+rank":
                job.results += self._turned_probe(factor, u, blocks)
        job.results.append((factor.inverse, self.algebra.tensor(x.reshape(factor.inverse.shape))))

    def _turned_probe(self, factor: Factor, u: np.ndarray, blocks) -> list[tuple[Parameter, Tensor]]:
        """One step of subspace iteration, Q <- orth(Z), with the estimate's history carried over.

        The average behind Z = A Q knows A only through the old Q. For the new Q it is replaced by what the
        approximation D + U^T U does to it: that operator has the factor's own diagonal blocks, so everything that is
        averaged into Z from now on stays consistent with them, and A - U^T U stays positive semi-definite.
        """
        z = factor.beside.asnumpy().astype(np.float64)
        probe = np.linalg.qr(z)[0]
        beside = self.algebra.times(blocks, probe) + u.transpose(0, 2, 1) @ (u @ probe)
        return [(factor.probe, Tensor(probe.astype(np.float32))), (factor.beside, Tensor(beside.astype(np.float32)))]
