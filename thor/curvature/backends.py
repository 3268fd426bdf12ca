"""The linear algebra of a refresh on stacks of blocks [m, b, b]: LAPACK on the host, or operators of the device.

Each function takes a bucket, a list of stacks with one block size, and returns a list with one entry per stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from first_order.compiled import CompiledFunction
from thor.curvature import block_inverse
from thor.curvature.factor import Factor

BATCH_STEP = 16  # device batches are padded to a multiple of this, so that few shapes are compiled


def algebra_of(method: str) -> HostAlgebra | DeviceAlgebra:
    """The algebra for an inverse method, which is one of ``thor.device.INVERSES``."""
    return HostAlgebra() if method == "lapack" else DeviceAlgebra(method)


class HostAlgebra:
    """Algebra with NumPy and LAPACK, for CPUs: their tensors are in host memory already."""

    def blocks(self, factors: Sequence[Factor], us: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """D [c n, b, b] of each factor: its blocks less the blocks of U^T U, for U [c, r, n b (+1)] or None."""
        return [self._blocks(factor, u) for factor, u in zip(factors, us, strict=True)]

    def _blocks(self, factor: Factor, u: np.ndarray | None) -> np.ndarray:
        blocks, scale = factor.blocks.asnumpy(), factor.scale
        if scale != 1.0:
            blocks = np.float32(scale) * blocks
        if u is not None:
            parts = _by_block(factor, u)
            blocks = blocks - parts.transpose(0, 1, 3, 2) @ parts
        return blocks.reshape(-1, factor.cut.size, factor.cut.size)

    def invert(self, stacks: Sequence[np.ndarray], damping: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Invert blocks + damping I, with ``damping`` [m] for all m blocks of the bucket, one stack after another.

        Returns the inverses of each stack, and one flag for each of the m blocks: True if its inverse can be trusted.
        """
        inverses, trusted = block_inverse.invert_on_host(np.concatenate(stacks), damping)
        return split_by_stack(inverses, stacks), trusted

    def times(self, stacks: Sequence[np.ndarray], thin: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each stack [c n, b, b], as c block-diagonal matrices, times its thin matrices [c, n b, r]; in float64."""
        products = [x @ _rows_by_block(y, x.shape[-1]) for x, y in zip(stacks, thin, strict=True)]
        return [x.reshape(y.shape).astype(np.float64) for x, y in zip(products, thin, strict=True)]

    def finite(self, stacks: Sequence[np.ndarray]) -> list[bool]:
        """For each stack, True if all its entries are finite."""
        return [bool(np.isfinite(blocks.sum(dtype=np.float64))) for blocks in stacks]

    def tensor(self, blocks) -> Tensor:
        """Blocks as a float32 Tensor."""
        return Tensor(np.ascontiguousarray(blocks, np.float32))

    def to_host(self, blocks) -> np.ndarray:
        """Blocks as a NumPy array."""
        return blocks

    def from_host(self, blocks: np.ndarray):
        """A NumPy array as blocks of this algebra."""
        return blocks


class DeviceAlgebra:
    """The same functions with MindSpore's operators, for accelerators; they run on a CPU too.

    All stacks of a bucket are joined into one batch, and results return to the host in one piece: on an accelerator,
    a call or a wait for a result takes the host as long as computing many blocks. Inverses are compiled once per shape.
    """

    def __init__(self, method: str):
        def cholesky(blocks, damping):
            return block_inverse.invert_by_cholesky(blocks, damping)

        def newton_schulz(blocks, damping):
            return block_inverse.invert_by_newton_schulz(blocks, damping)

        self._careful = CompiledFunction(newton_schulz)
        self._inverse = {"cholesky": CompiledFunction(cholesky), "newton-schulz": self._careful}[method]

    def blocks(self, factors: Sequence[Factor], us: Sequence[np.ndarray | None]) -> list[Tensor]:
        stacks = [ops.reshape(f.blocks, (-1, f.cut.size, f.cut.size)) for f in factors]
        scales = [f.scale for f in factors]
        stacks = [x if scale == 1.0 else x * scale for x, scale in zip(stacks, scales, strict=True)]
        if all(u is None for u in us):
            return stacks
        rank = max(f.cut.rank for f in factors)
        parts = np.concatenate([_padded(f, u, rank) for f, u in zip(factors, us, strict=True)])
        u = self.tensor(parts)
        return _split(_joined(stacks) - ops.BatchMatMul(transpose_a=True)(u, u), stacks)

    def invert(self, stacks: Sequence[Tensor], damping: np.ndarray) -> tuple[list[Tensor], np.ndarray]:
        size = stacks[0].shape[-1]
        used = len(damping)
        spare = -used % BATCH_STEP
        if spare:
            filler = np.broadcast_to(np.eye(size, dtype=np.float32), (spare, size, size))
            stacks = [*stacks, self.tensor(filler)]
        batch = _joined(stacks)
        damping = Tensor(np.pad(damping, (0, spare)).astype(np.float32))
        try:
            inverses, trusted = self._inverse(batch, damping)
            trusted = trusted.asnumpy()
        except (RuntimeError, ValueError):
            # ops.cholesky may raise for a block that is not positive definite, without naming it; this method flags it
            inverses, trusted = self._careful(batch, damping)
            trusted = trusted.asnumpy()
        results = _split(inverses, stacks)
        return results[:-1] if spare else results, trusted[:used] > 0

    def times(self, stacks: Sequence[Tensor], thin: Sequence[np.ndarray]) -> list[np.ndarray]:
        if not stacks:
            return []
        rank = max(each.shape[-1] for each in thin)
        rows = [_rows_by_block(_wider(each, rank), x.shape[-1]) for x, each in zip(stacks, thin, strict=True)]
        product = ops.bmm(_joined(stacks), self.tensor(np.concatenate(rows))).asnumpy().astype(np.float64)
        products = zip(split_by_stack(product, stacks), thin, strict=True)
        return [x[:, :, : y.shape[-1]].reshape(y.shape) for x, y in products]

    def finite(self, stacks: Sequence[Tensor]) -> list[bool]:
        if not stacks:
            return []
        sums = ops.ReduceSum()(_joined(stacks), (1, 2)).asnumpy()
        return [bool(np.isfinite(each).all()) for each in split_by_stack(sums, stacks)]

    def tensor(self, blocks) -> Tensor:
        return blocks if isinstance(blocks, Tensor) else Tensor(np.ascontiguousarray(blocks, np.float32))

    def to_host(self, blocks) -> np.ndarray:
        return blocks.asnumpy()

    def from_host(self, blocks: np.ndarray) -> Tensor:
        return self.tensor(blocks)


#: What the b x b work is done with.
Algebra = HostAlgebra | DeviceAlgebra


def split_by_stack(joined: np.ndarray, stacks: Sequence[Any]) -> list[np.ndarray]:
    """Split an array with one entry per block of all stacks into one array per stack."""
    return np.split(joined, np.cumsum([len(each) for each in stacks])[:-1])


def _joined(stacks: Sequence[Tensor]) -> Tensor:
    """All stacks as one."""
    return ops.cat(tuple(stacks), 0) if len(stacks) > 1 else stacks[0]


def _split(joined: Tensor, stacks: Sequence[Tensor]) -> list[Tensor]:
    """Undo :func:`_joined`: split one stack into stacks as long as the given ones."""
    return list(ops.split(joined, [len(each) for each in stacks], 0)) if len(stacks) > 1 else [joined]


def _rows_by_block(thin: np.ndarray, size: int) -> np.ndarray:
    """[c, n b, r] as [c n, b, r] float32."""
    return thin.astype(np.float32).reshape(-1, size, thin.shape[-1])


def _wider(thin: np.ndarray, rank: int) -> np.ndarray:
    """[c, m, r], padded with columns of zeros to [c, m, rank]."""
    return np.pad(thin, ((0, 0), (0, 0), (0, rank - thin.shape[-1])))


def _padded(factor: Factor, u: np.ndarray | None, rank: int) -> np.ndarray:
    """U as [c n, rank, b] float32, padded with rows of zeros; all zeros if ``u`` is None."""
    cut = factor.cut
    if u is None:
        return np.zeros((factor.copies * cut.count, rank, cut.size), np.float32)
    parts = _by_block(factor, u).reshape(-1, cut.rank, cut.size)
    return np.pad(parts, ((0, 0), (0, rank - cut.rank), (0, 0)))


def _by_block(factor: Factor, u: np.ndarray) -> np.ndarray:
    """U [c, r, n b (+1)] as [c, n, r, b] float32, without the column of a separate bias."""
    cut = factor.cut
    inside = u[:, :, : cut.padded].astype(np.float32)
    return inside.reshape(factor.copies, cut.rank, cut.count, cut.size).transpose(0, 2, 1, 3)
