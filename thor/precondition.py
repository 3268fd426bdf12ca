"""dW -> G^-1 dW A^-1, block by block (pure functions of tensors).

With D^-1 in blocks [c, n, b, b] and Woodbury's thin s, t [c, n b, r], an inverse acts as

    (D + U^T U)^-1 x = D^-1 x - s (t^T x).

The gradient of a layer is laid out as [c, O, I (+1)]: c copies (groups), O outputs, I inputs, the bias's gradient as
the last column, as A has its coordinate last. It is padded once, and cut back once. Where the bias stands apart
(blocks.py), its gradient stays a column of its own, and a weight that needs no padding is only reshaped.
"""

from __future__ import annotations

from mindspore import ops

from thor.compiled import columns_of, rows_of


def precondition(x, a_inverse, a_s, a_t, g_inverse, g_s, g_t):
    """G^-1 X A^-1 for a padded X [c, O', I']; s and t are one-element tensors where blocks stand alone."""
    y = multiply_right(x, a_inverse)
    if a_s.ndim == 3:
        return precondition_difference(y, ops.bmm(x, a_s), a_t, g_inverse, g_s, g_t)
    return precondition_rows(y, g_inverse, g_s, g_t)


def precondition_with_bias(x, b, a_inverse, a_s, a_t, bias_inverse, g_inverse, g_s, g_t):
    """G^-1 [X b] A^-1 for X [c, O', I'] and the bias's gradient b [c, O', 1] apart: the two parts of the result.

    With q = X s_x + b s_b, the right factor gives X D^-1 - q t_x^T and b d^-1 - q t_b.
    """
    inputs = x.shape[2]
    s, s_bias = rows_of(a_s, 0, inputs), rows_of(a_s, inputs, 1)
    t, t_bias = rows_of(a_t, 0, inputs), rows_of(a_t, inputs, 1)
    q = ops.bmm(x, s) + b * s_bias
    of_weight = precondition_difference(multiply_right(x, a_inverse), q, t, g_inverse, g_s, g_t)
    of_bias = precondition_rows(b * bias_inverse.reshape(-1, 1, 1) - q * t_bias, g_inverse, g_s, g_t)
    return of_weight, of_bias


def precondition_difference(y, q, t, g_inverse, g_s, g_t):
    """G^-1 (Y - q t^T) with G^-1 = P - s_G t_G^T, as P Y - [P q, s_G] [t, w]^T, w^T = t_G^T Y - (t_G^T q) t^T.

    One thin outer product and one subtraction for both sides: passes over a whole matrix, not its products with thin
    ones, are what costs.
    """
    left, right = multiply_left(q, g_inverse), t.swapaxes(1, 2)
    if g_s.ndim == 3:
        by_columns = ops.BatchMatMul(transpose_a=True)
        w = by_columns(g_t, y) - ops.bmm(by_columns(g_t, q), right)
        left, right = ops.cat((left, g_s), 2), ops.cat((right, w), 1)
    return multiply_left(y, g_inverse) - ops.bmm(left, right)


def precondition_rows(y, g_inverse, g_s, g_t):
    """G^-1 Y for a padded Y [c, O', m]."""
    if g_s.ndim == 3:
        return multiply_left(y, g_inverse) - ops.bmm(g_s, ops.BatchMatMul(transpose_a=True)(g_t, y))
    return multiply_left(y, g_inverse)


def multiply_left(x, inverse):
    """P X for block-diagonal P: row blocks lie behind each other already, so that reshapes suffice."""
    copies, count, size, _ = inverse.shape
    columns = x.shape[2]
    if size == 1:
        return x * inverse.reshape(copies, count, 1)
    y = ops.bmm(inverse.reshape(copies * count, size, size), x.reshape(copies * count, size, columns))
    return y.reshape(copies, count * size, columns)


def multiply_right(x, inverse):
    """X Q for block-diagonal Q: column blocks take one transposition each way, unless there is one block."""
    copies, count, size, _ = inverse.shape
    rows = x.shape[1]
    if size == 1:
        return x * inverse.reshape(copies, 1, count)
    if count == 1:
        return ops.bmm(x, inverse.reshape(copies, size, size))
    blocks = x.reshape(copies, rows, count, size).transpose(0, 2, 1, 3).reshape(copies * count, rows, size)
    y = ops.bmm(blocks, inverse.reshape(copies * count, size, size))
    return y.reshape(copies, count, rows, size).transpose(0, 2, 1, 3).reshape(copies, rows, count * size)


def to_matrix(weight, bias, copies, rows, columns, positions=1):
    """A layer's gradients as [c, O', I'], zeros below and to the right up to ``rows`` x ``columns``.

    ``bias`` is None where the layer has no captured bias. One concatenation adds the bias's column and the zeros.
    With ``positions`` > 1, kernel positions come before channels, as in that layer's A.
    """
    matrix = weight.reshape(copies, weight.shape[0] // copies, -1)
    if positions > 1:
        matrix = weight.reshape(weight.shape[0], -1, positions).transpose(0, 2, 1).reshape(matrix.shape)
    outputs, missing = matrix.shape[1], columns - matrix.shape[2]
    parts = (matrix,)
    if bias is not None:
        parts += (bias.reshape(copies, outputs, 1),)
        missing -= 1
    if missing > 0:
        parts += (ops.zeros((copies, outputs, missing), matrix.dtype),)
    if len(parts) > 1:
        matrix = ops.cat(parts, 2)
    if outputs < rows:
        matrix = ops.cat((matrix, ops.zeros((copies, rows - outputs, columns), matrix.dtype)), 1)
    return matrix


def from_matrix(matrix, weight, bias, copies, positions=1):
    """The directions of weight and bias out of a padded [c, O', I'], shaped and typed as their gradients."""
    outputs = weight.shape[0] // copies
    inputs = weight.size // weight.shape[0]
    if outputs < matrix.shape[1]:
        matrix = rows_of(matrix, 0, outputs)
    weights = matrix
    if inputs < matrix.shape[2]:
        weights = columns_of(matrix, 0, inputs)
    if positions > 1:
        weights = weights.reshape(weight.shape[0], positions, -1).transpose(0, 2, 1)
    weights = weights.reshape(weight.shape).astype(weight.dtype)
    if bias is None:
        return (weights,)
    return weights, columns_of(matrix, inputs, 1).reshape(bias.shape).astype(bias.dtype)
