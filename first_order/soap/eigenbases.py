r"""The mathematics of SOAP: Shampoo's matrices of a tensor, their eigenbases, and rotations into these.

A tensor of the shape :math:`d_1 \times \dots \times d_k` has, for some of its axes, a symmetric matrix
:math:`L_i \in R^{d_i \times d_i}` (Shampoo's L and R of a matrix), and an orthogonal matrix :math:`Q_i` whose columns
approximate the eigenvectors of :math:`L_i`, the largest eigenvalue first. An axis without them is not rotated.

Reference: Vyas et al., SOAP: improving and stabilizing Shampoo using Adam, https://arxiv.org/abs/2409.11321 (2024),
algorithm 3.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops
from mindspore.ops.operations.linalg_ops import Eigh

from first_order.adam import moments_after

#: The operators themselves: the functions around them check arguments inside the graph, for each weight anew.
_EIGH, _QR, _SORT_DOWN = Eigh(True), ops.operations.Qr(False), ops.Sort(-1, True)

#: Rounding of numbers near 1.
EPSILON_32, EPSILON_64 = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)


def merged_shape(shape, max_precond_dim, merge_dims):
    """The shape that a weight has for SOAP: its own, or with neighbouring axes merged while their product fits.

    Axes are taken from the left, and each is merged into the last one if the product is at most ``max_precond_dim``.
    """
    shape = tuple(int(n) for n in shape)
    if not merge_dims or len(shape) < 2:
        return shape
    merged, current = [], 1
    for n in shape:
        if current * n <= max_precond_dim:
            current *= n
        elif current > 1:
            merged.append(current)
            current = n
        else:
            merged.append(n)
            current = 1
    if current > 1 or not merged:
        merged.append(current)
    return tuple(merged)


def axes_of(shape, max_precond_dim, precondition_1d, ndim):
    """The axes of a (merged) ``shape`` that have an eigenbasis.

    Those of one entry have none, as there is nothing to rotate; nor has any axis of more than ``max_precond_dim``
    entries, nor that of a vector (of a weight with ``ndim`` < 2 axes) unless ``precondition_1d``.
    """
    if ndim < 2 and not precondition_1d:
        return ()
    return tuple(axis for axis, n in enumerate(shape) if 1 < n <= max_precond_dim)


def gram(x, axis):
    r"""The sum over all other axes of the outer products of x along one: :math:`\sum x_{..i..} x_{..j..}`, [d, d]."""
    before, n, after = _around(x.shape, axis)
    if after == 1:
        rows = x.reshape(before, n)
        return ops.MatMul(True, False)(rows, rows)
    rows = x.reshape(n, after) if before == 1 else x.reshape(before, n, after).transpose(1, 0, 2).reshape(n, -1)
    return ops.MatMul(False, True)(rows, rows)


def rotated(x, axes, bases):
    r"""A tensor in the eigenbases: along each of ``axes``, :math:`y_{..i..} = \sum_j Q_{ji} x_{..j..}`."""
    for k in range(len(axes)):
        x = _multiplied(x, axes[k], bases[k], True)
    return x


def rotated_back(x, axes, bases):
    r"""A tensor out of the eigenbases: along each of ``axes``, :math:`y_{..i..} = \sum_j Q_{ij} x_{..j..}`."""
    for k in range(len(axes)):
        x = _multiplied(x, axes[k], bases[k], False)
    return x


def _multiplied(x, axis, matrix, transposed):
    """A tensor times a matrix, or times the transposed matrix, along one axis."""
    before, n, after = _around(x.shape, axis)
    if after == 1:
        return ops.MatMul(False, not transposed)(x.reshape(before, n), matrix).reshape(x.shape)
    if before == 1:
        return ops.MatMul(transposed, False)(matrix, x.reshape(n, after)).reshape(x.shape)
    turned = matrix.swapaxes(0, 1) if transposed else matrix
    return ops.matmul(turned, x.reshape(before, n, after)).reshape(x.shape)


def _around(shape, axis):
    """Number of entries before an axis, along it and behind it."""
    before, after = 1, 1
    for n in shape[:axis]:
        before *= n
    for n in shape[axis + 1 :]:
        after *= n
    return before, shape[axis], after


def first_basis(matrix):
    """The eigenvectors of a symmetric matrix, the largest eigenvalue first, [d, d]."""
    _, vectors = _EIGH(matrix)  # the smallest eigenvalue first
    # MindSpore's eigenvectors of large float32 matrices are not quite orthogonal
    return _QR(vectors.flip((-1,)))[0]


def next_basis(matrix, basis):
    """(basis, order) after one step of the power iteration from ``basis``, made orthogonal by QR.

    Before that, the old basis vectors are sorted by their Rayleigh quotients q^T L q, the largest first. ``order`` has
    the old places: the second moment must be sorted with them.

    MindSpore's QR is not orthogonal if a column is so short that the square of its length underflows. L q is, for a
    direction q without curvature. So the largest entry of L Q is made 1, and the identity times the rounding of numbers
    near 1 is added to L, which turns no eigenvector.
    """
    product = ops.matmul(matrix, basis)
    _, order = _SORT_DOWN((basis * product).sum(0))
    largest = ops.abs(product).max()
    scaled = product / ops.where(largest > 0, largest, ops.ones_like(largest))
    rounding = EPSILON_64 if matrix.dtype == ms.float64 else EPSILON_32
    return _QR(ops.gather(scaled + rounding * basis, order, 1))[0], order


def adam_in_basis(x, m, v, g, axes, bases, rate, keep, beta1, beta2, epsilon, normalize):
    """(x, m, v) after a step of Adam in the eigenbases; m and v are in them, x and g are not.

    ``rate`` includes the bias correction. ``keep`` multiplies the moved weights: 1 - learning rate * weight decay. With
    ``normalize`` the step has root mean square ``rate``.
    """
    turned = rotated(g, axes, bases)
    m, v = moments_after(m, v, turned, beta1, beta2)
    step = rotated_back(m / (ops.sqrt(v) + epsilon), axes, bases)
    if normalize:
        step = step / (ops.sqrt((step * step).mean()) + 1e-30)
    return (x - rate * step) * keep, m, v


def renewed(m, v, axes, grams, bases):
    """(m, v, bases) after each basis has made one step towards the eigenvectors of its matrix."""
    m, new = rotated_back(m, axes, bases), ()
    for k in range(len(axes)):
        basis, order = next_basis(grams[k], bases[k])
        v = ops.gather(v, order, axes[k])
        new += (basis,)
    return rotated(m, axes, new), v, new
