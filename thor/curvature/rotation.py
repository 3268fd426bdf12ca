"""The gradient of a layer in the eigenbasis of its factors, and a step turned back: pure functions, and their Cell.

With the eigenvectors of the blocks of A and of G in the columns of the block-diagonal Q_A and Q_G, a matrix X [c, O, I]
of a layer becomes Q_G^T X Q_A, and a step U in the basis becomes Q_G U Q_A^T. A direction without curvature has a
column of zeros, and takes no step, unless nothing is known of its block yet.
"""

from __future__ import annotations

from mindspore import ops

from thor.curvature.direction import (
    Form,
    LayerMatrices,
    left_by_blocks,
    multiply_left,
    multiply_right,
    multiply_right_by_one,
    right_by_blocks,
    right_by_one_block,
)
from thor.runtime.graph_ops import reshaped

_by_transposed, _of_transposed = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul(transpose_a=True)


def multiply_left_by_transposed(x, basis):
    """Q^T X for block-diagonal Q [c, n, b, b] and X [c, n b, m]."""
    return left_by_blocks(_of_transposed, x, basis)


def multiply_right_by_transposed(x, basis):
    """X Q^T for X [c, m, n b] and block-diagonal Q [c, n, b, b]."""
    return right_by_blocks(_by_transposed, x, basis)


def multiply_right_by_one_transposed(x, basis):
    """X Q^T for X [c, m, b] and Q of one block [c, 1, b, b]."""
    return right_by_one_block(_by_transposed, x, basis)


class Rotation(LayerMatrices):
    """Turns the gradients of layers of one form into their eigenbases, and steps back out of them.

    ``bases`` are those of the columns' factor, then of the rows'; a diagonal factor has none.
    """

    def __init__(self, form: Form, layers: int = 1):
        super().__init__(form, layers)
        (_, count, size, _), (_, _, row_size, _) = form.columns[0], form.rows[0]
        self.turns_columns, self.turns_rows = size > 1, row_size > 1
        self.right = multiply_right_by_one if count == 1 else multiply_right
        self.right_back = multiply_right_by_one_transposed if count == 1 else multiply_right_by_transposed

    def construct(self, x, bases):
        """Q_G^T X Q_A for X [c, O', I']."""
        if self.turns_columns:
            x = self.right(x, bases[0])
        if self.turns_rows:
            x = multiply_left_by_transposed(x, bases[-1])
        return x

    def back(self, u, bases):
        """Q_G U Q_A^T for U [c, O', I'], in ``shape``."""
        if self.turns_columns:
            u = self.right_back(u, bases[0])
        if self.turns_rows:
            u = multiply_left(u, bases[-1])
        return reshaped(u, self.shape)


class RotationElsewhere(LayerMatrices):
    """Replaces :class:`Rotation` on a rank that does not hold the layer's bases, and turns nothing."""

    def construct(self, x, bases):
        """X itself."""
        return x

    def back(self, u, bases):
        """U itself, in ``shape``."""
        return reshaped(u, self.shape)
