"""Caches as dense matrices: the inverse of a factor from its blocks, its thin matrices and its bias's part.

    (D + U^T U)^-1 = D^-1 - s t, without padding; for a separate bias with the border of thor/curvature/factor.py

A product with a dense matrix takes one kernel, blocks and thin matrices take about five. A group of layers has it so
where the operations that this adds take less time than the launch of the kernels that it saves. Bases are made dense
likewise, where columns would be brought to their blocks and back.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, ops

from thor.curvature.factor import Factor
from thor.factors.blocks import Cut
from thor.runtime import device


def few_operations(rows: int, dim: int) -> bool:
    """Whether so many rows times a dense matrix of this dimension take less time than the kernels that this saves."""
    return 2 * rows * dim * dim <= device.operations_of_launches()


def is_dense_faster(cut: Cut, across: int) -> bool:
    """Whether ``across`` rows or columns are multiplied faster with a dense inverse of this cut."""
    in_parts = cut.rank > 0 and not cut.whole_inverse
    return in_parts and few_operations(across, cut.dim)


def dense_inverse(factor: Factor) -> Tensor:
    """The cached inverse of a factor in parts as one matrix for each copy, [c, 1, dim, dim]."""
    cut, copies = factor.cut, factor.copies
    inputs = cut.dim - cut.bias_apart
    blocks, s, t = factor.inverse.value(), factor.s.value()[:, :inputs], factor.t.value()[:, :, :inputs]
    full = block_diagonal(blocks)[:, :inputs, :inputs] - ops.bmm(s, t[:, : cut.rank])
    if factor.bias_inverse is not None:
        bias = factor.bias_inverse.value()
        column = ops.concat([ops.bmm(s, bias[:, :-1]), bias[:, -1:]], 1)
        full = ops.concat([ops.concat([full, -t[:, -1:]], 1), column], 2)
    return full.reshape(copies, 1, cut.dim, cut.dim)


def block_diagonal(blocks: Tensor) -> Tensor:
    """Blocks [c, n, b, b] on the diagonal of [c, n b, n b], with zeros elsewhere."""
    copies, count, size, _ = blocks.shape
    own = Tensor(np.eye(count, dtype=np.float32).reshape(1, count, 1, count, 1))
    return (blocks.reshape(copies, count, size, 1, size) * own).reshape(copies, count * size, count * size)
