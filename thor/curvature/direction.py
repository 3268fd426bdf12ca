"""The preconditioned direction G^-1 dW A^-1 of a layer, block by block: pure functions of tensors, and their Cell.

With D^-1 in blocks [c, n, b, b] and Woodbury's thin matrices s [c, n b, r] and t [c, r, n b], an inverse acts as

    (D + U^T U)^-1 x = D^-1 x - s (t x).

The gradient of a layer is a matrix [c, O, I (+1)]: c copies (groups), O outputs, I inputs, and the bias's gradient as
the last column, because the bias is A's last coordinate. Layers of one form may be stacked: m layers are then one of
m c copies, which takes as many kernels. The matrix is padded once, and its direction is cut once. The gradient of a
separate bias (thor/factors/blocks.py) stays a column of its own, so that a weight that needs no padding is only
reshaped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mindspore as ms
from mindspore import nn, ops

from thor.runtime.graph_ops import constant, over, reshaped, shared, swapped
from thor.runtime.stack import Stack

#: Multiplies [c, n, ...] without reshaping the inverse: a reshaped Parameter would be copied at each step.
_product = ops.BatchMatMul()
_cast, _slice, _behind, _below = ops.Cast(), ops.Slice(), ops.Concat(2), ops.Concat(1)


def left_by_blocks(product, x, blocks):
    """``product`` of each block of ``blocks`` [c, n, b, b] and its rows of X [c, n b, m].

    Row blocks are contiguous, so that reshapes suffice.
    """
    copies, count, size, _ = blocks.shape
    columns = x.shape[2]
    y = product(blocks, reshaped(x, (copies, count, size, columns)))
    return reshaped(y, (copies, count * size, columns))


def right_by_blocks(product, x, blocks):
    """``product`` of the columns of X [c, m, n b] and each block of ``blocks`` [c, n, b, b].

    Column blocks are made contiguous and moved back.
    """
    copies, count, size, _ = blocks.shape
    rows = x.shape[1]
    y = product(swapped(x, copies, rows, count, size), blocks)
    return reshaped(swapped(y, copies, count, rows, size), (copies, rows, count * size))


def right_by_one_block(product, x, block):
    """As :func:`right_by_blocks`, for one block [c, 1, b, b], which needs no column moved."""
    copies, _, size, _ = block.shape
    rows = x.shape[1]
    return reshaped(product(reshaped(x, (copies, 1, rows, size)), block), (copies, rows, size))


def multiply_left(x, inverse):
    """P X for block-diagonal P [c, n, b, b] and X [c, n b, m]."""
    return left_by_blocks(_product, x, inverse)


def multiply_left_by_diagonal(x, inverse):
    """P X for diagonal P, stored as blocks of one row [c, n, 1, 1], and X [c, n, m]."""
    copies, count, _, _ = inverse.shape
    return x * reshaped(inverse, (copies, count, 1))


def multiply_right(x, inverse):
    """X Q for X [c, m, n b] and block-diagonal Q [c, n, b, b]."""
    return right_by_blocks(_product, x, inverse)


def multiply_right_by_one(x, inverse):
    """X Q for X [c, m, b] and Q of one block [c, 1, b, b]."""
    return right_by_one_block(_product, x, inverse)


def multiply_right_by_diagonal(x, inverse):
    """X Q for X [c, m, n] and diagonal Q, stored as blocks of one row [c, n, 1, 1]."""
    copies, count, _, _ = inverse.shape
    return x * reshaped(inverse, (copies, 1, count))


@dataclass(frozen=True)
class Form:
    """The properties of a layer that decide how it is preconditioned: layers of one form share a :class:`Direction`.

    Attributes:
        weight: shape of the weight.
        dtype: type of the weight.
        bias: True if the layer has a bias.
        copies: number of copies (groups) of each factor.
        positions: number of kernel positions if they come first in A's order, 1 if channels do.
        columns: shapes of the cached inverse (``Cut.cache_shapes``) of the factor of the weight's columns.
        rows: the same for the factor of the weight's rows.
        transposed: True if a dense layer's weight is [I, O], the transpose of ``weight``.
    """

    weight: tuple[int, ...]
    dtype: ms.Type
    bias: bool
    copies: int
    positions: int
    columns: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    transposed: bool = False

    @property
    def bias_apart(self) -> bool:
        """True if the bias is separate from the blocks of A."""
        return len(self.columns) == 4


class LayerMatrices(nn.Cell):
    """Turns the gradients of layers of one form into matrices, and such matrices into the shapes of their weights.

    The gradients of a layer are (weight's,) or (weight's, bias's), those of ``layers`` layers a tuple of such tuples.
    As matrices they are (X,), padded, or (X, b) for a separate bias, with the copies of one layer behind those of the
    layer before. Branches depend on attributes only: MindSpore's compiler decides such branches while it parses, which
    is much faster.
    """

    def __init__(self, form: Form, layers: int = 1):
        super().__init__(auto_prefix=False)
        self.dtype, self.weight, self.copies, self.positions = form.dtype, form.weight, form.copies, form.positions
        self.transposed, self.all_copies = form.transposed, layers * form.copies
        (_, a_count, a_size, _), (_, g_count, g_size, _) = form.columns[0], form.rows[0]
        self.outputs = form.weight[0] // form.copies
        self.inputs = math.prod(form.weight) // form.weight[0]
        self.rows, self.columns = g_count * g_size, a_count * a_size
        self.bias_apart, self.bias_inside = form.bias_apart, form.bias and not form.bias_apart
        self.more_columns = self.columns - self.inputs - self.bias_inside
        self.more_rows = self.rows - self.outputs
        self.stack = shared(Stack, layers)
        #: True if nothing is padded, reordered or stacked. A direction then gets the weight's shape where it is
        #: computed: a reshape at the end of a graph would be a copy
        plain = form.positions == 1 and not form.transposed and layers == 1
        self.as_weight = plain and not self.bias_inside and self.more_columns == self.more_rows == 0
        self.shape = form.weight if self.as_weight else (self.all_copies, 1, self.rows, self.columns)

    def matrices(self, gradients):
        """The gradients as float32 matrices [layers c, O', I'], padded with zeros below and on the right."""
        x = self.stack.joined(over(self._as_matrix, gradients))
        if self.bias_inside:
            x = _behind((x, self.stack.joined(over(self._as_column, gradients))))
        if self.more_columns > 0:
            x = _behind((x, constant((self.all_copies, self.outputs, self.more_columns), 0.0)))
        if self.more_rows > 0:
            x = _below((x, constant((self.all_copies, self.more_rows, self.columns), 0.0)))
        if not self.bias_apart:
            return (x,)
        b = self.stack.joined(over(self._as_column, gradients))
        if self.more_rows > 0:
            b = _below((b, constant((self.all_copies, self.more_rows, 1), 0.0)))
        return x, b

    def _as_matrix(self, gradients):
        x = _cast(gradients[0], ms.float32)
        if self.transposed:
            x = ops.transpose(x, (1, 0))
        if self.positions > 1:
            x = ops.transpose(reshaped(x, (self.weight[0], -1, self.positions)), (0, 2, 1))
        return reshaped(x, (self.copies, self.outputs, self.inputs))

    def _as_column(self, gradients):
        return reshaped(_cast(gradients[1], ms.float32), (self.copies, self.outputs, 1))

    def cut(self, matrices, gradients):
        """The directions of each layer, cut from their matrices, in the shapes and types of its gradients."""
        x = matrices[0]
        if not self.as_weight and (self.rows > self.outputs or self.columns > self.inputs):
            x = self._window(x, 0, self.inputs)
        weights = over(self._weight_of, self.stack.apart(x))
        if self.bias_apart:
            b = matrices[1]
            if self.more_rows > 0:
                b = _slice(b, (0, 0, 0), (self.all_copies, self.outputs, 1))
            return over(self._with_bias, weights, self.stack.apart(b), gradients)
        if self.bias_inside:
            columns = self._window(matrices[0], self.inputs, 1)
            return over(self._with_bias, weights, self.stack.apart(columns), gradients)
        return over(_alone, weights)

    def _window(self, x, first, columns):
        return _slice(x, (0, 0, 0, first), (self.all_copies, 1, self.outputs, columns))

    def _weight_of(self, x):
        if not self.as_weight:
            if self.positions > 1:
                x = ops.transpose(reshaped(x, (self.weight[0], self.positions, -1)), (0, 2, 1))
            x = reshaped(x, self.weight)
        if self.transposed:
            x = ops.transpose(x, (1, 0))
        return _cast(x, self.dtype)

    def _with_bias(self, weight, column, gradients):
        return weight, _cast(reshaped(column, (self.weight[0],)), gradients[1].dtype)


def _alone(weight):
    return (weight,)


class Direction(LayerMatrices):
    """Turns the gradients of layers of one form into their directions.

    The caches are (inverse, s, t) of the columns' factor, then of the rows', and A's bias_inverse for a separate bias,
    each with the copies of one layer behind those of the layer before.
    """

    def __init__(self, form: Form, layers: int = 1):
        super().__init__(form, layers)
        (_, a_count, a_size, _), (_, _, g_size, _) = form.columns[0], form.rows[0]
        self.left = multiply_left_by_diagonal if g_size == 1 else multiply_left
        self.right = multiply_right_by_one if a_count == 1 else multiply_right
        if a_size == 1:
            self.right = multiply_right_by_diagonal
        self.thin_left, self.thin_right = len(form.rows[1]) == 3, len(form.columns[1]) == 3

    def construct(self, matrices, caches):
        """G^-1 X A^-1 as matrices: the weight's in ``shape``, and [c, O', 1] for a separate bias.

        For a separate bias A^-1 is bordered (factor.py): [X b] A^-1 = [X D^-1 - [X s, b] t, [X s, b] bias_inverse].
        """
        y = self.right(matrices[0], caches[0])
        if not self.thin_right:
            return (reshaped(self._rows(y, caches), self.shape),)
        v = ops.bmm(matrices[0], caches[1])
        if self.bias_apart:
            v = _behind((v, matrices[1]))
        v = self._rows(v, caches)
        of_weight = self._difference(y, v, caches)
        if self.bias_apart:
            return of_weight, ops.bmm(v, caches[6])
        return (of_weight,)

    def _rows(self, y, caches):
        """G^-1 Y for Y [c, O', m]."""
        if self.thin_left:
            return self.left(y, caches[3]) - ops.bmm(caches[4], ops.bmm(caches[5], y))
        return self.left(y, caches[3])

    def _difference(self, y, v, caches):
        """G^-1 Y - V t with G^-1 = P - s_G t_G, computed as P Y - [V, s_G] [t, t_G Y].

        Both sides share one thin outer product and one subtraction, because a pass over a full matrix costs more than
        its products with thin matrices. The operands of the subtraction are reshaped, not its result: a reshape at the
        end of a graph would be a copy.
        """
        t = caches[2]
        if self.thin_left:
            v, t = _behind((v, caches[4])), _below((t, ops.bmm(caches[5], y)))
        return reshaped(self.left(y, caches[3]), self.shape) - reshaped(ops.bmm(v, t), self.shape)


class DirectionElsewhere(nn.Cell):
    """Replaces :class:`Direction` on a rank that does not hold the layer's inverses: its directions are zero."""

    bias_apart = False

    def matrices(self, gradients):
        """The gradients of the one layer, unchanged."""
        return gradients[0]

    def construct(self, matrices, caches):
        """Zeros in the shapes of ``matrices``."""
        return over(ops.zeros_like, matrices)

    def cut(self, matrices, gradients):
        """The zeros, as those of one layer."""
        return (matrices,)
