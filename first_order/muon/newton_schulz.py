r"""The Newton-Schulz iteration, which brings a matrix near its polar factor by products alone.

Reference: Jordan et al., Muon: an optimizer for hidden layers in neural networks,
https://kellerjordan.github.io/posts/muon/ (2024).
"""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import ops

from first_order import checks, tensor_checks
from first_order.tensors import on_host, scalar, working_type

#: a, b and c of a x + b x^3 + c x^5.
COEFFICIENTS = (3.4445, -4.775, 2.0315)
STEPS = 5
EPS = 1e-7
#: More steps than that are a mistake; PyTorch has the same limit.
MOST_STEPS = 99
ADJUSTMENTS = ("original", "match_rms_adamw")
#: Types of the iteration; None is the working type.
DTYPES = (None, ms.float32, ms.bfloat16)


def newton_schulz(matrix, coefficients=COEFFICIENTS, steps=STEPS, eps=EPS, dtype=None):
    r"""An approximation of the polar factor :math:`U V^\top` of a matrix :math:`U S V^\top`, or of each of a stack.

    The matrix is divided by its Frobenius norm. Each step applies an odd polynomial to the singular values and leaves
    the singular vectors alone:

    .. math::
        X \leftarrow X / \max(\lVert X \rVert_F, \epsilon), \qquad X \leftarrow a X + (b A + c A^2) X, \quad
        A = X X^\top

    The default coefficients have the steepest slope at 0 for which singular values stay bounded. They do not converge
    to 1: after five steps, singular values of at least 1 % of the norm lie between 0.68 and 1.14.

    Args:
        matrix: [..., R, C], float16, float32 or float64.
        coefficients: (a, b, c).
        steps: number of steps, at least 0 and less than 100.
        eps: lower bound of the norm, so that zeros stay zeros.
        dtype: type of the iteration: None for float64 of float64, else float32; float32; or bfloat16, which rounds
            after each product and each sum of products, as PyTorch does. The products themselves are float32's.

    Returns:
        [..., R, C] in the type of ``matrix``.

    Example:
        >>> import numpy as np
        >>> from first_order import newton_schulz
        >>> x = newton_schulz(np.array([[3.0, 0.0], [0.0, -0.5], [0.0, 0.0]])).asnumpy()
        >>> print(x.round(2))
        [[ 0.71  0.  ]
         [ 0.   -1.04]
         [ 0.    0.  ]]
    """
    if on_host(matrix):
        matrix = tensor_checks.as_tensor("matrix", matrix, tensor_checks.FLOATS)
        if matrix.ndim < 2:
            raise ValueError(f"matrix must have at least two axes, but has shape {tuple(matrix.shape)}")
        coefficients, steps, eps, dtype = check_iteration(coefficients, steps, eps, dtype, prefix="")
    x = matrix.astype(working_type(matrix.dtype))
    return orthogonalized(x, coefficients, steps, eps, dtype).astype(matrix.dtype)


def orthogonalized(x, coefficients, steps, eps, dtype):
    """:func:`newton_schulz` for a Tensor in the working type, with arguments that were checked."""
    low = dtype == ms.bfloat16
    kind = x.dtype if dtype is None else ms.float32
    a, b, c = scalar(coefficients[0], kind), scalar(coefficients[1], kind), scalar(coefficients[2], kind)
    wide = x.shape[-2] <= x.shape[-1]
    y = _rounded(x.astype(kind), low)
    norm = _rounded(ops.sqrt((y * y).sum((-2, -1), True)), low)
    y = _rounded(y / ops.maximum(norm, scalar(eps, kind)), low)
    for _ in range(steps):
        # A is the smaller of X X^T and X^T X: a X + (b A + c A^2) X = a X + X (b A + c A^2) for one and the other
        gram = _rounded(ops.BatchMatMul(not wide, wide)(y, y), low)
        poly = _rounded(b * gram + c * ops.matmul(gram, gram), low)
        turned = ops.matmul(poly, y) if wide else ops.matmul(y, poly)
        y = _rounded(a * y + turned, low)
    return y.astype(x.dtype)


def _rounded(x, low):
    """``x``, rounded to bfloat16 if ``low``."""
    if low:
        return x.astype(ms.bfloat16).astype(ms.float32)
    return x


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Shape of the matrix that a weight is for Muon: the first axis by all others."""
    return int(shape[0]), math.prod(int(n) for n in shape[1:])


def rate_ratio(shape: tuple[int, ...], adjust_lr_fn: str) -> float:
    """What the learning rate of a weight of this shape is multiplied by, for a matrix of R x C.

    "original" is sqrt(max(1, R / C)). "match_rms_adamw" is 0.2 sqrt(max(R, C)): the step's root mean square is then
    about 0.2, as AdamW's is, so that a learning rate of AdamW fits.
    """
    rows, columns = matrix_shape(shape)
    if adjust_lr_fn == "original":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


def check_iteration(
    coefficients: Any, steps: Any, eps: Any, dtype: Any, prefix: str = "ns_"
) -> tuple[Any, int, float, Any]:  # fmt: skip
    """The arguments of the iteration; raise if one is wrong. ``prefix`` is that of their names in an optimizer."""
    if not isinstance(coefficients, tuple | list) or len(coefficients) != 3:
        raise ValueError(f"{prefix}coefficients must be three numbers (a, b, c), but got {coefficients!r}")
    numbers = tuple(checks.number(f"{prefix}coefficients[{i}]", c, -math.inf) for i, c in enumerate(coefficients))
    if checks.check_int(f"{prefix}steps", steps, 0) > MOST_STEPS:
        raise ValueError(f"{prefix}steps must be at most {MOST_STEPS}, but got {steps}: {STEPS} are usual")
    if not any(dtype is each for each in DTYPES):
        raise ValueError(
            f"{prefix}dtype must be None (the working type), mindspore.float32 or mindspore.bfloat16, but got {dtype!r}"
        )
    return numbers, steps, checks.number("eps", eps, 0.0, open_low=True), dtype


def check_adjustment(name: Any) -> str:
    """``name``; raise unless it is one of ADJUSTMENTS. None is "original", as in PyTorch."""
    if name is None:
        return ADJUSTMENTS[0]
    if name not in ADJUSTMENTS:
        raise ValueError(f"adjust_lr_fn must be one of {', '.join(ADJUSTMENTS)}, but got {name!r}")
    return name
