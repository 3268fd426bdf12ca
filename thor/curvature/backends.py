"""The b x b work of a refresh, on stacks of blocks [m, b, b]: LAPACK on the host, or the device's operators.

Functions take a bucket, a list of stacks with one block size, and answer with a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from thor.curvature import block_inverse
from thor.curvature.factor import Factor

BATCH_STEP = 16  # device batches are padded to a multiple of this, so that few shapes are compiled


def algebra_of(method: str) -> HostAlgebra | DeviceAlgebra:
    """What an inverse method works with; ``method`` is one of ``thor.device.INVERSES``."""
    return HostAlgebra() if method == "lapack" else DeviceAlgebra(method)


class HostAlgebra:
    """NumPy and LAPACK: the CPU's way, where tensors lie in host memory already."""

    def blocks(self, factors: Sequence[Factor], us: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """D [c n, b, b] of each factor."""
        return [self._blocks(factor, u) for factor, u in zip(factors, us, strict=True)]

    def _blocks(self, factor: Factor, u: np.ndarray | None) -> np.ndarray:
        blocks = factor.blocks.asnumpy()
        if u is not None:
            parts = _by_block(factor, u)
            blocks = blocks - parts.transpose(0, 1, 3, 2) @ parts
        return blocks.reshape(-1, factor.cut.size, factor.cut.size)

    def invert(self, stacks: Sequence[np.ndarray], damping: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The inverses of each stack, and one flag for each of all their blocks that says whether to trust it."""
        inverses, trusted = block_inverse.invert_on_host(np.concatenate(stacks), damping)
        return split_by_stack(inverses, stacks), trusted

    def times(self, stacks: Sequence[np.ndarray], thin: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Stacks [c n, b, b] as block-diagonal matrices, each times its [c, n b, r], in float64."""
        products = [x @ _rows_by_block(y, x.shape[-1]) for x, y in zip(stacks, thin, strict=True)]
        return [x.reshape(y.shape).astype(np.float64) for x, y in zip(products, thin, strict=True)]

    def finite(self, stacks: Sequence[np.ndarray]) -> list[bool]:
        """Whether every entry of each stack is a number."""
        return [bool(np.isfinite(blocks.sum(dtype=np.float64))) for blocks in stacks]

    def tensor(self, blocks) -> Tensor:
        """As a tensor."""
        return Tensor(np.ascontiguousarray(blocks, np.float32))

    def to_host(self, blocks) -> np.ndarray:
        """As an array."""
        return blocks

    def from_host(self, blocks: np.ndarray):
        """An array as what this algebra works with."""
        return blocks


class DeviceAlgebra:
    """The same with MindSpore's operators: the accelerators' way, which runs on a CPU too.

    Stacks are joined, worked on at once, and what the host needs comes back in one piece: on an accelerator each call,
    and each wait for a result, costs the host as much as the work of many blocks. Inverses are compiled, once per
    shape.
    """

    def __init__(self, method: str):
        @ms.jit
        def cholesky(blocks, damping):
            return block_inverse.invert_by_cholesky(blocks, damping)

        @ms.jit
        def newton_schulz(blocks, damping):
            return block_inverse.invert_by_newton_schulz(blocks, damping)

        self._inverse = cholesky if method == "cholesky" else newton_schulz
        self._careful = newton_schulz

    def blocks(self, factors: Sequence[Factor], us: Sequence[np.ndarray | None]) -> list[Tensor]:
        stacks = [ops.reshape(f.blocks, (-1, f.cut.size, f.cut.size)) for f in factors]
        if all(u is None for u in us):
            return stacks
        rank = max(f.cut.rank for f in factors)
        parts = np.concatenate([_padded(f, u, rank) for f, u in zip(factors, us, strict=True)])
        beside = self.tensor(parts)
        return _split(_joined(stacks) - ops.BatchMatMul(transpose_a=True)(beside, beside), stacks)

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
            # ops.cholesky may raise where a block is not positive definite, and does not say which; this one does
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


def split_by_stack(joined: np.ndarray, stacks: Sequence[Any]) -> list[np.ndarray]:
    """What is known of the blocks of all stacks, one after another, in parts as long as these."""
    return np.split(joined, np.cumsum([len(each) for each in stacks])[:-1])


def _joined(stacks: Sequence[Tensor]) -> Tensor:
    """One stack of all blocks."""
    return ops.cat(tuple(stacks), 0) if len(stacks) > 1 else stacks[0]


def _split(joined: Tensor, stacks: Sequence[Tensor]) -> list[Tensor]:
    """A stack in parts as long as these."""
    return list(ops.split(joined, [len(each) for each in stacks], 0)) if len(stacks) > 1 else [joined]


def _rows_by_block(thin: np.ndarray, size: int) -> np.ndarray:
    """[c, n b, r] as [c n, b, r] float32."""
    return thin.astype(np.float32).reshape(-1, size, thin.shape[-1])


def _wider(thin: np.ndarray, rank: int) -> np.ndarray:
    """[c, m, r] with columns of zeros behind, up to so many."""
    return np.pad(thin, ((0, 0), (0, 0), (0, rank - thin.shape[-1])))


def _padded(factor: Factor, u: np.ndarray | None, rank: int) -> np.ndarray:
    """U as [c n, rank, b] float32, with rows of zeros behind; all zeros where there is none."""
    cut = factor.cut
    if u is None:
        return np.zeros((factor.copies * cut.count, rank, cut.size), np.float32)
    parts = _by_block(factor, u).reshape(-1, cut.rank, cut.size)
    return np.pad(parts, ((0, 0), (0, rank - cut.rank), (0, 0)))


def _by_block(factor: Factor, u: np.ndarray) -> np.ndarray:
    """U [c, r, n b (+1)] as [c, n, r, b] float32, without a bias that stands apart."""
    cut = factor.cut
    inside = u[:, :, : cut.padded].astype(np.float32)
    return inside.reshape(factor.copies, cut.rank, cut.count, cut.size).transpose(0, 2, 1, 3)
