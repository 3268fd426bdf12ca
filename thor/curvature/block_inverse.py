"""Inverses of damped, symmetric positive definite blocks: LAPACK or sweeps on the host, Cholesky or Newton-Schulz.

Pure functions from blocks [m, b, b] and ``damping`` [m], which is added to the diagonal of each block, to
(inverses [m, b, b], trusted [m]). An entry of ``trusted`` is false if the inverse of its block cannot be trusted, for
example because the block is not positive definite. Only ``ops.cholesky`` may raise instead, and does on a CPU.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops
from scipy.linalg.lapack import spotrf, spotri

#: Newton-Schulz doubles its correct digits per iteration once I - A X is small, and needs about 2 log2(condition)
#: iterations to get there. These suffice up to a condition number of 1e4; a block that needs more is not trusted.
NEWTON_SCHULZ_ITERATIONS = 40
#: An inverse X is trusted if all entries of I - A X are smaller.
RESIDUAL_LIMIT = 0.1
#: Blocks of at most so many rows are inverted by sweeps on the host. The groups of a grouped convolution have thousands
#: of such blocks, for each of which a call of LAPACK takes longer than its arithmetic.
SWEPT_SIZE = 16
#: Entries of the blocks that are swept at once: they fit into a processor's second-level cache.
SWEPT_ENTRIES = 2**18


def invert_on_host(blocks: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Invert on the host, small blocks by sweeps, all others with LAPACK: (inverses, trusted)."""
    method = invert_by_sweeps if blocks.shape[-1] <= SWEPT_SIZE else invert_by_lapack
    return method(blocks, damping)


def invert_by_lapack(blocks: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Invert block by block with LAPACK's ``spotrf`` and ``spotri``: (inverses, trusted)."""
    inverses = np.empty_like(blocks)
    trusted = np.zeros(len(blocks), bool)
    upper = np.triu(np.ones(blocks.shape[1:], bool))
    for index, block in enumerate(blocks):
        damped = block.astype(np.float32, copy=True)
        np.fill_diagonal(damped, damped.diagonal() + damping[index])
        factor, info = spotrf(damped.T, lower=0, clean=0, overwrite_a=1)
        if info != 0:
            continue
        half, info = spotri(factor, lower=0, overwrite_c=1)
        inverses[index] = np.where(upper, half, half.T)
        trusted[index] = info == 0 and bool(np.isfinite(inverses[index].sum(dtype=np.float64)))
    return inverses, trusted


def invert_by_sweeps(blocks: np.ndarray, damping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Invert many small blocks at once, by a sweep of every row in turn: (inverses, trusted).

    Gauss-Jordan elimination of [A | I], in place. The sweep of row k eliminates column k, and keeps in its place the
    column of the right half that this fills:

        a_kk <- 1 / a_kk,   a_kj <- a_kj / a_kk,   a_ik <- - a_ik / a_kk,   a_ij <- a_ij - a_ik a_kj / a_kk

    After all rows the right half is A^-1. The pivot a_kk is the square of Cholesky's k-th diagonal entry, so that a
    block is positive definite if and only if all its pivots are positive. An operation on all blocks is one of NumPy,
    and a block's result does not depend on the others.
    """
    count, size, _ = blocks.shape
    inverses, trusted = np.empty_like(blocks), np.empty(count, bool)
    at_once = SWEPT_ENTRIES // size**2
    for start in range(0, count, at_once):
        part = slice(start, start + at_once)
        a = np.array(blocks[part].transpose(1, 2, 0), np.float32, order="C")  # [b, b, m]: the axis of blocks is last
        a[np.arange(size), np.arange(size)] += damping[part].astype(np.float32)
        with np.errstate(all="ignore"):  # a block that is not positive definite may divide by zero, or overflow
            positive = _sweep_all(a)
            a = np.float32(0.5) * (a + a.transpose(1, 0, 2))
            trusted[part] = positive & np.isfinite(a.sum((0, 1), dtype=np.float64))
        inverses[part] = a.transpose(2, 0, 1)
    return inverses, trusted


def _sweep_all(a: np.ndarray) -> np.ndarray:
    """Sweep every row of a [b, b, m] in place; returns which of the m blocks had positive pivots only."""
    positive = np.ones(a.shape[2], bool)
    for k in range(len(a)):
        pivot, column = a[k, k].copy(), a[:, k].copy()
        positive &= pivot > 0
        row = a[k] / pivot
        a -= column[:, None] * row
        a[k], a[:, k], a[k, k] = row, column / -pivot, 1.0 / pivot
    return positive


def invert_by_cholesky(blocks, damping):
    """Invert by batched Cholesky and two triangular solves, on targets with ``ops.cholesky``: (inverses, trusted)."""
    damped = add_to_diagonal(blocks, damping)
    identity = identity_of(blocks.shape[-1])
    factor = ops.cholesky(damped)
    inverses = ops.cholesky_solve(identity.expand_dims(0).broadcast_to(blocks.shape), factor)
    return inverses, is_inverse(damped, inverses)


def invert_by_newton_schulz(blocks, damping, iterations=NEWTON_SCHULZ_ITERATIONS):
    """Iterate X <- X (2 I - A X), matrix products only, for devices without a faster method: (inverses, trusted).

    The blocks are first scaled to a unit diagonal (Jacobi). This lowers their condition number, on which the number of
    iterations depends. X0 = I / ||A||_inf puts the spectrum of A X0 into (0, 1], where the iteration converges
    (Schulz 1933; Ben-Israel 1965). The iteration diverges for an indefinite block, which is therefore not trusted.
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
    """Invert blocks of one row [m, 1, 1], all at once on the host: (inverses, trusted)."""
    damped = blocks + damping.astype(np.float32).reshape(-1, 1, 1)
    trusted = (damped > 0) & np.isfinite(damped)
    return 1.0 / np.where(trusted, damped, 1.0), trusted.reshape(-1)


def identity_of(size):
    """The identity [size, size] in float32.

    ``ops.eye`` is unsafe on a GPU: its kernel clears the matrix on one stream and writes the ones on another, so that
    the ones may be cleared as well (docs/results/gpu.md).
    """
    rows = ops.arange(size)
    return (rows.expand_dims(-1) == rows).astype(ms.float32)


def add_to_diagonal(blocks, damping):
    """Blocks [m, b, b] with damping [m] added to their diagonals."""
    identity = identity_of(blocks.shape[-1])
    return blocks + damping.reshape(-1, 1, 1) * identity


def is_inverse(matrix, inverse):
    """For each block, 1 if all entries of |I - A X| are below ``RESIDUAL_LIMIT``, else 0 (as for NaN); float32 [m]."""
    size = matrix.shape[-1]
    identity = identity_of(size)
    residual = ops.amax(ops.abs(identity - ops.bmm(matrix, inverse)), (1, 2))
    return (residual < RESIDUAL_LIMIT).astype(ms.float32)
