"""The b x b work of a refresh, on stacks of blocks [m, b, b]: LAPACK on the host, or the device's operators."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from thor import inverse
from thor.layers import Factor

BATCH_STEP = 16  # device batches are padded to a multiple of this, so that few shapes are compiled


def algebra_of(method: str) -> HostAlgebra | DeviceAlgebra:
    """What an inverse method works with; ``method`` is one of ``thor.device.INVERSES``."""
    return HostAlgebra() if method == "lapack" else DeviceAlgebra(method)


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

    def to_host(self, blocks) -> np.ndarray:
        """As an array."""
        return blocks

    def from_host(self, blocks: np.ndarray):
        """An array as what this algebra works with."""
        return blocks


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

    def to_host(self, blocks) -> np.ndarray:
        return blocks.asnumpy()

    def from_host(self, blocks: np.ndarray) -> Tensor:
        return self.tensor(blocks)


def _by_block(factor: Factor, u: np.ndarray) -> np.ndarray:
    """U [c, r, n b (+1)] as [c, n, r, b] float32, without a bias that stands apart."""
    cut = factor.cut
    inside = u[:, :, : cut.padded].astype(np.float32)
    return inside.reshape(factor.copies, cut.rank, cut.count, cut.size).transpose(0, 2, 1, 3)
