"""The inverse of damped, symmetric positive definite blocks: LAPACK on the host, Cholesky, Newton-Schulz.

Pure functions, [m, b, b] in and out. ``damping`` [m] is added to each block's diagonal; each function answers with the
inverses and one flag a block that says whether to trust it. A block that is not positive definite is flagged; only
``ops.cholesky`` may raise for it instead, and does on a CPU.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops
from scipy.linalg.lapack import spotrf, spotri

#: Newton-Schulz doubles its correct digits per iteration once I - A X is small, and needs about 2 log2(condition)
#: iterations to get there. Tested up to a condition number of 1e4; a block beyond its reach is flagged.
NEWTON_SCHULZ_ITERATIONS = 40
#: Largest entry of I - A X with which an inverse is still taken.
RESIDUAL_LIMIT = 0.1


def invert_on_host(blocks: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """LAPACK's ``spotrf`` and ``spotri``, block by block: (inverses, trusted)."""
    inverses = np.empty_like(blocks)
    trusted = np.zeros(len(blocks), bool)
    for index, block in enumerate(blocks):
        damped = block.astype(np.float32, copy=True)
        np.fill_diagonal(damped, damped.diagonal() + damping[index])
        factor, info = spotrf(damped.T, lower=0, clean=0, overwrite_a=1)
        if info != 0:
            continue
        half, info = spotri(factor, lower=0, overwrite_c=1)
        upper = np.triu(half)
        inverses[index] = upper + np.triu(upper, 1).T
        trusted[index] = info == 0 and bool(np.isfinite(upper.sum(dtype=np.float64)))
    return inverses, trusted


def invert_by_cholesky(blocks, damping):
    """Batched Cholesky and two triangular solves, for targets with ``ops.cholesky``: (inverses, trusted)."""
    damped = add_to_diagonal(blocks, damping)
    identity = identity_of(blocks.shape[-1])
    factor = ops.cholesky(damped)
    inverses = ops.cholesky_solve(identity.expand_dims(0).broadcast_to(blocks.shape), factor)
    return inverses, is_inverse(damped, inverses)


def invert_by_newton_schulz(blocks, damping, iterations=NEWTON_SCHULZ_ITERATIONS):
    """X <- X (2 I - A X): matrix products alone, for units that have nothing faster: (inverses, trusted).

    The blocks are first scaled to a unit diagonal (Jacobi), which lowers the condition number that the number of
    iterations depends on; X0 = I / ||A||_inf makes the spectrum of A X0 lie in (0, 1], where the iteration converges
    (Schulz 1933; Ben-Israel 1965). An indefinite block diverges and is flagged.
    """
    damped = add_to_diagonal(blocks, damping)
    size = blocks.shape[-1]
    identity = identity_of(size)
    diagonal = (damped * identity).sum(-1)
    scale = ops.rsqrt(ops.maximum(diagonal, ops.full_like(diagonal, 1e-30)))
    scaled = damped * scale.expand_dims(-1) * scale.expand_dims(-2)
    norm = ops.amax(ops.abs(scaled).sum(-1), -1).reshape(-1, 1, 1)
    x = identity / norm
    twice = 2.0 * identity
    for _ in range(iterations):
        x = ops.bmm(x, twice - ops.bmm(scaled, x))
    x = (x + x.transpose(0, 2, 1)) * 0.5
    trusted = is_inverse(scaled, x)
    return x * scale.expand_dims(-1) * scale.expand_dims(-2), trusted


def reciprocals(blocks: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of one, all at once on the host: (inverses, trusted)."""
    damped = blocks + damping.astype(np.float32).reshape(-1, 1, 1)
    trusted = (damped > 0) & np.isfinite(damped)
    return 1.0 / np.where(trusted, damped, 1.0), trusted.reshape(-1)


def identity_of(size):
    """The identity [size, size] in float32.

    Not by ``ops.eye``: on a GPU its kernel clears the matrix on another stream than the one it writes the ones on, so
    that now and then they are cleared too (MindSpore 2.10; docs/results.md, "On a GPU").
    """
    rows = ops.arange(size)
    return (rows.expand_dims(-1) == rows).astype(ms.float32)


def add_to_diagonal(blocks, damping):
    """Blocks [m, b, b] + damping [m] on each diagonal."""
    identity = identity_of(blocks.shape[-1])
    return blocks + damping.reshape(-1, 1, 1) * identity


def is_inverse(matrix, inverse):
    """Whether I - A X is small, block by block, as float32 0 or 1; NaN counts as no."""
    size = matrix.shape[-1]
    identity = identity_of(size)
    residual = ops.amax(ops.abs(identity - ops.bmm(matrix, inverse)), (1, 2))
    return (residual < RESIDUAL_LIMIT).astype(ms.float32)
