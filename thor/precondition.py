"""dW -> G^-1 dW A^-1, block by block (pure functions of tensors).

With D^-1 in blocks [c, n, b, b] and Woodbury's thin s [c, n b, r] and t [c, r, n b], an inverse acts as

    (D + U^T U)^-1 x = D^-1 x - s (t x).

The gradient of a layer is laid out as [c, O, I (+1)]: c copies (groups), O outputs, I inputs, the bias's gradient as
the last column, as A has its coordinate last. It is padded once, and cut back once. Where the bias stands apart
(blocks.py), its gradient stays a column of its own, and a weight that needs no padding is only reshaped.
"""

from __future__ import annotations

from mindspore import ops

from thor.compiled import swapped, window_of

#: Of [c, n, ...] as they are: a reshaped Parameter would be copied at each step, anything else is reshaped for nothing.
_product = ops.BatchMatMul()


def precondition(x, a_inverse, a_s, a_t, g_inverse, g_s, g_t, shape):
    """G^-1 X A^-1 for a padded X [c, O', I'], as ``shape``; s and t have one entry where blocks stand alone."""
    y = multiply_right(x, a_inverse)
    if a_s.ndim == 3:
        v = precondition_rows(ops.bmm(x, a_s), g_inverse, g_s, g_t)
        return precondition_difference(y, v, a_t, g_inverse, g_s, g_t, shape)
    return precondition_rows(y, g_inverse, g_s, g_t).reshape(shape)


def precondition_with_bias(x, b, a_inverse, a_s, a_t, bias_inverse, g_inverse, g_s, g_t, shape):
    """G^-1 [X b] A^-1 for X [c, O', I'] and the bias's gradient b [c, O', 1] apart: X's part as ``shape``, and b's.

    With A^-1 bordered as in layers.py, [X b] A^-1 = [X D^-1 - [X s, b] t, [X s, b] bias_inverse].
    """
    v = precondition_rows(ops.cat((ops.bmm(x, a_s), b), 2), g_inverse, g_s, g_t)
    of_weight = precondition_difference(multiply_right(x, a_inverse), v, a_t, g_inverse, g_s, g_t, shape)
    return of_weight, ops.bmm(v, bias_inverse)


def precondition_difference(y, v, t, g_inverse, g_s, g_t, shape):
    """G^-1 Y - V t with G^-1 = P - s_G t_G, as P Y - [V, s_G] [t, t_G Y].

    One thin outer product and one subtraction for both sides: passes over a whole matrix, not its products with thin
    ones, are what costs. What is subtracted is reshaped, not the result: at the end of a graph that would be a copy.
    """
    if g_s.ndim == 3:
        v, t = ops.cat((v, g_s), 2), ops.cat((t, ops.bmm(g_t, y)), 1)
    return multiply_left(y, g_inverse).reshape(shape) - ops.bmm(v, t).reshape(shape)


def shape_of_result(weight, rows, columns, copies, positions):
    """As which shape a direction is wanted: its weight's where nothing is padded or ordered, else [c, 1, O', I'].

    So a product with one block comes: at the end of a graph, another shape would be a copy.
    """
    if weight.size == copies * rows * columns and positions == 1:
        return weight.shape
    return copies, 1, rows, columns


def precondition_rows(y, g_inverse, g_s, g_t):
    """G^-1 Y for a padded Y [c, O', m]."""
    if g_s.ndim == 3:
        return multiply_left(y, g_inverse) - ops.bmm(g_s, ops.bmm(g_t, y))
    return multiply_left(y, g_inverse)


def multiply_left(x, inverse):
    """P X for block-diagonal P: row blocks lie behind each other already, so that reshapes suffice."""
    copies, count, size, _ = inverse.shape
    columns = x.shape[2]
    if size == 1:
        return x * inverse.reshape(copies, count, 1)
    return _product(inverse, x.reshape(copies, count, size, columns)).reshape(copies, count * size, columns)


def multiply_right(x, inverse):
    """X Q for block-diagonal Q: column blocks are brought together and back, unless there is one block."""
    copies, count, size, _ = inverse.shape
    rows = x.shape[1]
    if size == 1:
        return x * inverse.reshape(copies, 1, count)
    if count == 1:
        return _product(x.reshape(copies, 1, rows, size), inverse).reshape(copies, rows, size)
    blocks = swapped(x, copies, rows, count, size)
    return swapped(_product(blocks, inverse), copies, count, rows, size).reshape(copies, rows, count * size)


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
    """The directions of weight and bias out of a padded [..., O', I'], shaped and typed as their gradients."""
    if bias is None and matrix.shape == weight.shape:
        return (matrix.astype(weight.dtype),)
    outputs = weight.shape[0] // copies
    inputs = weight.size // weight.shape[0]
    weights = window_of(matrix, copies, outputs, 0, inputs)
    if positions > 1:
        weights = weights.reshape(weight.shape[0], positions, -1).transpose(0, 2, 1)
    weights = weights.reshape(weight.shape).astype(weight.dtype)
    if bias is None:
        return (weights,)
    return weights, window_of(matrix, copies, outputs, inputs, 1).reshape(bias.shape).astype(bias.dtype)
