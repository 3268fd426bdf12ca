"""The mathematics of Adafactor for one tensor, or for tensors of equal shape stacked along a leading axis."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

#: Matrices of up to this many entries are averaged over their rows by one product with a constant matrix.
SMALL_MATRIX = 256


def state_shapes(shape):
    """Shapes of a tensor's state by name: row and column factor of the last two axes, or the unfactored variance."""
    if len(shape) > 1:
        return {"row": (*shape[:-1], 1), "col": (*shape[:-2], 1, shape[-1])}
    return {"variance": tuple(shape)}


def machine_epsilon(eps1, dtype):
    """``eps1``; if it is None, the machine epsilon of the type, finfo(dtype).eps."""
    if eps1 is not None:
        return eps1
    if dtype == ms.float16:
        return 2.0**-10
    if dtype == ms.float32:
        return 2.0**-23
    return 2.0**-52


def lerp(old, new, weight):
    """``old + weight (new - old)``; exactly ``new`` at weight 1 where ``old`` is 0, as in the first step."""
    return old + weight * (new - old)


def at_least(floor, value):
    """max(value, floor), where a NaN stays NaN, as in PyTorch's ``clamp``.

    The order of the operands matters: MindSpore's CPU kernel returns its second operand if one of them is NaN.
    """
    return ops.maximum(floor, value)


def factored_root(row, col, row_mean, eps1):
    r"""max(sqrt(V), eps1) for V = row col / max(row_mean, eps1), [..., R, C], never forming V.

    The root is taken of the two factors: :math:`\sqrt{V} = \sqrt{row / \overline{row}} \sqrt{col}`, and
    :math:`1 / \sqrt{\max(V, \epsilon_1^2)} = 1 / \max(\sqrt{V}, \epsilon_1)`.
    """
    return at_least(eps1, ops.sqrt(row / at_least(eps1, row_mean)) * ops.sqrt(col))


def adafactor_step(means, x, g, state, weight, rho, keep, eps1, eps2, d):
    """(x, state) after a step; state is (row, col) or (variance,). All tensors have the working type.

    Scalars are 0-d, or have one number per tensor if several are stacked. ``means`` computes the averages: it is a
    :class:`Reductions`, a :class:`StackedReductions` or a :class:`Products`.
    """
    square = g * g
    if len(state) == 2:
        row = lerp(state[0], means.of_rows(square), weight)
        col = lerp(state[1], means.of_columns(square), weight)
        root = factored_root(row, col, means.of_row_factor(row), eps1)
        state = (row, col)
    else:
        variance = lerp(state[0], square, weight)
        root = at_least(eps1, ops.sqrt(variance))
        state = (variance,)
    u = g / root
    # PyTorch uses Python's max here, which returns eps2 and 1 if the root mean square is NaN. The order of the operands
    # below does the same.
    alpha = ops.maximum(means.root_mean_square(x), eps2) * rho
    clipping = ops.maximum(means.root_mean_square(u) / d, Tensor(1, u.dtype))
    return x * keep - alpha / clipping * u, state


class Reductions(nn.Cell):
    """Averages of one tensor, computed by MindSpore's reductions."""

    def of_rows(self, x):
        """Mean over the last axis, which is kept: [..., R, 1]."""
        return ops.mean(x, -1, True)

    def of_columns(self, x):
        """Mean over the last axis but one, which is kept: [..., 1, C]."""
        return ops.mean(x, -2, True)

    def of_row_factor(self, row):
        """Mean of [..., R, 1] over R: [..., 1, 1]."""
        return ops.mean(row, -2, True)

    def root_mean_square(self, x):
        """Root mean square of all entries, 0-d."""
        return ops.sqrt((x * x).mean())


class StackedReductions(Reductions):
    """The same averages for tensors stacked along a leading axis."""

    def root_mean_square(self, x):
        """Root mean square of each tensor, [count, 1, ..., 1]."""
        flat = ops.mean((x * x).reshape(x.shape[0], -1), 1)
        return ops.sqrt(flat).reshape((x.shape[0],) + (1,) * (x.ndim - 1))


class Products(nn.Cell):
    """The same averages as products with constant matrices, for one tensor or several stacked ones.

    On a CPU, MindSpore's reductions over one axis are much slower than such products, and inaccurate in float32 over a
    long last axis. On a GPU or an Ascend, use the reductions: products may have a lower precision there.

    Args:
        shape: shape of one tensor.
        count: number of stacked tensors; 0 for one tensor without a leading axis.
        dtype: type of the arithmetic.
    """

    def __init__(self, shape, count, dtype):
        super().__init__(auto_prefix=False)
        kind = np.float64 if dtype == ms.float64 else np.float32
        self.stack, self.size = max(count, 1), int(np.prod(shape, dtype=np.int64))
        self.lead = (count,) if count else ()
        self.scalars = (count,) + (1,) * len(shape) if count else ()
        self.size_as_tensor = Tensor(self.size, dtype)
        if len(shape) > 1:
            self.rows, self.columns = shape[-2], shape[-1]
            self.matrices = self.stack * self.size // (self.rows * self.columns)
            self.outer = self.lead + tuple(shape[:-2])
            self.over_columns = Tensor(np.full((self.columns, 1), 1 / self.columns, kind))
            self.over_rows = Tensor(np.full((self.rows, 1), 1 / self.rows, kind))
            self.small = self.rows * self.columns <= SMALL_MATRIX
            if self.small:
                self.down = Tensor(np.tile(np.eye(self.columns) / self.rows, (self.rows, 1)).astype(kind))
            else:
                self.down = Tensor(np.full((self.matrices, 1, self.rows), 1 / self.rows, kind))

    def of_rows(self, x):
        """Mean over the last axis, which is kept: [..., R, 1]."""
        return ops.matmul(x.reshape(-1, self.columns), self.over_columns).reshape(self.outer + (self.rows, 1))

    def of_columns(self, x):
        """Mean over the last axis but one, which is kept: [..., 1, C]."""
        if self.small:
            mean = ops.matmul(x.reshape(-1, self.rows * self.columns), self.down)
        else:
            mean = ops.bmm(self.down, x.reshape(self.matrices, self.rows, self.columns))
        return mean.reshape(self.outer + (1, self.columns))

    def of_row_factor(self, row):
        """Mean of [..., R, 1] over R: [..., 1, 1]."""
        return ops.matmul(row.reshape(-1, self.rows), self.over_rows).reshape(self.outer + (1, 1))

    def root_mean_square(self, x):
        """Root mean square of each tensor, [count, 1, ..., 1]; 0-d for one tensor without a leading axis."""
        total = ops.bmm(x.reshape(self.stack, 1, self.size), x.reshape(self.stack, self.size, 1))
        return ops.sqrt(total.reshape(self.scalars) / self.size_as_tensor)
