"""How much of a Kronecker factor a split keeps (pure NumPy and SciPy).

    loss    L = 1 - ||A_hat||_2 / ||A||_2     A_hat: only the diagonal blocks of A (THOR, AAAI 2021)
    error   ||A - A_hat||_2 / ||A||_2         A_hat: the full approximation, blocks and low-rank part
    cosine  between the layer's gradient preconditioned with A_hat, G_hat and with A, G

The loss depends on the largest eigenvalue only, which a mean or low-rank part already captures. The error and the
cosine depend on the full approximation.

A factor is a stack [c, d, d]. Its c copies (groups of a convolution) form a block-diagonal matrix, so its norm is the
largest norm of a copy. Lanczos (SciPy's ``eigsh``) computes spectral norms from matrix-vector products, without
decomposing a factor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from thor.factors.blocks import Cut

Array = NDArray[np.float32]
Apply = Callable[[NDArray[np.float64]], NDArray[np.float64]]

#: Relative accuracy of a spectral norm, far below the default loss threshold of 1 %.
TOLERANCE = 1e-5
_DENSE_BELOW = 24  # matrices up to this size are decomposed: too small for a Krylov space
SUBSPACE_STEPS = 3  # subspace iterations for the probe of "block+rank"


def spectral_norm(apply: Apply, size: int) -> float:
    """The largest absolute eigenvalue of the symmetric operator ``apply`` on vectors [size]."""
    if size <= _DENSE_BELOW:
        dense = np.stack([apply(column) for column in np.eye(size)], 1)
        return float(np.abs(np.linalg.eigvalsh((dense + dense.T) / 2)).max())
    start = np.random.default_rng(0).standard_normal(size)
    operator = LinearOperator((size, size), matvec=lambda x: apply(np.ravel(x)), dtype=np.float64)
    if not np.any(apply(start)):
        return 0.0  # the zero operator: any other maps a random vector to nonzero, almost surely
    try:
        found = eigsh(operator, 1, which="LM", v0=start, tol=TOLERANCE, return_eigenvectors=False, maxiter=40)
    except ArpackNoConvergence as error:
        found = np.asarray(error.eigenvalues, np.float64)
        if not len(found):
            return _power_iteration(apply, start)
    return float(np.abs(found).max())


def _power_iteration(apply: Apply, x: NDArray[np.float64], steps: int = 100) -> float:
    """A lower bound that converges to the spectral norm, used where Lanczos found no eigenvalue."""
    norm = 0.0
    for _ in range(steps):
        x = x / np.linalg.norm(x)
        x = apply(x)
        norm = float(np.linalg.norm(x))
    return norm


class Split:
    """The approximation A_hat = D + U^T U of a stack of factors A [c, d, d] under a cut.

    D is block-diagonal. U [c, r, d] is the scaled mean or the low-rank part, and None for plain blocks.

    Args:
        factor: the factor A.
        cut: the layout of its blocks.
        mean: the scaled mean u [c, d] for "block+mean", with A - u u^T positive semi-definite.
    """

    def __init__(self, factor: Array, cut: Cut, mean: Array | None = None):
        self.factor, self.cut = factor, cut
        self.copies, self.dim = factor.shape[0], factor.shape[1]
        self.rows = self.dim - cut.bias_apart  # rows covered by the blocks
        self.beside = _directions(factor, cut, mean)  # U [c, r, d] or None

    def blocks(self, correct: bool = True) -> Array:
        """D [c, n, b, b]: the diagonal blocks of A - U^T U, or of A if not ``correct``; zeros in the padding."""
        cut = self.cut
        blocks = np.zeros((self.copies, cut.count, cut.size, cut.size), np.float32)
        for index in range(cut.count):
            rows = slice(index * cut.size, min(self.rows, (index + 1) * cut.size))
            length = max(0, rows.stop - rows.start)
            part = self.factor[:, rows, rows]
            if correct and self.beside is not None:
                u = self.beside[:, :, rows]
                part = part - u.transpose(0, 2, 1) @ u
            blocks[:, index, :length, :length] = part
        return blocks

    def error(self, norm: float) -> float:
        """||A - A_hat||_2 / ||A||_2, where ``norm`` is ||A||_2."""
        blocks = self.blocks()

        def difference(x: NDArray[np.float64]) -> NDArray[np.float64]:
            return multiply(self.factor, x) - multiply_blocks(blocks, x, self.dim) - multiply_thin(self.beside, x)

        return spectral_norm(difference, self.copies * self.dim) / norm if norm > 0 else 0.0

    def solve(self, damping: NDArray[np.float64], right: Array) -> Array:
        """(A_hat + damping I)^-1 X for damping [c] and X [c, d, m], by Cholesky of the blocks and Woodbury for U."""
        return np.stack([self._solve(copy, float(damping[copy]), right[copy]) for copy in range(self.copies)])

    def _solve(self, copy: int, damping: float, right: Array) -> Array:
        thin = None if self.beside is None else self.beside[copy].T
        augmented = right if thin is None else np.concatenate([right, thin], 1)
        solved = np.empty_like(augmented)
        for index in range(self.cut.count):
            rows = slice(index * self.cut.size, min(self.rows, (index + 1) * self.cut.size))
            if rows.start >= self.rows:
                break
            block = self.factor[copy, rows, rows].copy()
            if thin is not None:
                block -= thin[rows] @ thin[rows].T
            solved[rows] = solve_damped(block, damping, augmented[rows])
        if self.cut.bias_apart:
            solved[-1] = augmented[-1] / damping
        if thin is None:
            return solved
        x, s = solved[:, : right.shape[1]], solved[:, right.shape[1] :]
        small = np.eye(thin.shape[1], dtype=np.float32) + thin.T @ s
        return x - s @ np.linalg.solve(small, s.T @ right)


def spectral_loss(factor: Array, cut: Cut, norm: float) -> float:
    """THOR's L = 1 - ||A_hat||_2 / ||A||_2 in [0, 1], where A_hat has only the plain diagonal blocks of A."""
    if cut.count == 1 or norm <= 0:
        return 0.0
    blocks = Split(factor, Cut(cut.dim, cut.size, cut.count)).blocks()
    size = factor.shape[0] * factor.shape[1]
    kept = spectral_norm(lambda x: multiply_blocks(blocks, x, factor.shape[1]), size)
    return float(np.clip(1.0 - kept / norm, 0.0, 1.0))


def factor_norm(factor: Array) -> float:
    """||A||_2 of a stack of factors [c, d, d]."""
    return spectral_norm(lambda x: multiply(factor, x), factor.shape[0] * factor.shape[1])


def solve_damped(block: Array, damping: float, right: Array) -> Array:
    """(block + damping I)^-1 right, for block [b, b] and right [b, m].

    If rounding leaves the matrix not positive definite, the damping is multiplied by 10, up to five times.

    Raises:
        numpy.linalg.LinAlgError: if the block is still not positive definite.
    """
    for _ in range(6):
        damped = block.copy()
        np.fill_diagonal(damped, damped.diagonal() + damping)
        try:
            return cho_solve(cho_factor(damped, lower=True, overwrite_a=True, check_finite=False), right)
        except np.linalg.LinAlgError:
            damping *= 10.0
    raise np.linalg.LinAlgError("a block is not positive definite")


def _directions(factor: Array, cut: Cut, mean: Array | None) -> Array | None:
    """U [c, r, d]: the scaled mean, or the Nystroem form for the dominant subspace (see thor/curvature/factor.py)."""
    if not cut.rank:
        return None
    if cut.split == "block+mean":
        if mean is None:
            raise ValueError('split "block+mean" needs the mean of the rows')
        return mean[:, None, :].astype(np.float32)
    rng = np.random.default_rng(0)
    copies, dim, _ = factor.shape
    probe = np.linalg.qr(rng.standard_normal((copies, dim, cut.rank)).astype(np.float32))[0]
    for _ in range(SUBSPACE_STEPS):
        probe = np.linalg.qr(factor @ probe)[0]
    z = (factor @ probe).astype(np.float64)
    w = probe.transpose(0, 2, 1).astype(np.float64) @ z
    values, vectors = np.linalg.eigh((w + w.transpose(0, 2, 1)) / 2)
    keep = values > 1e-6 * np.maximum(values[:, -1:], 1e-300)
    roots = np.where(keep, 1.0 / np.sqrt(np.where(keep, values, 1.0)), 0.0)
    return (roots[:, :, None] * (vectors.transpose(0, 2, 1) @ z.transpose(0, 2, 1))).astype(np.float32)


def multiply(factor: Array, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """A x for a stack of factors [c, d, d] and a vector [c d]."""
    parts = x.reshape(factor.shape[0], factor.shape[1], 1).astype(np.float32)
    return (factor @ parts).reshape(-1).astype(np.float64)


def multiply_blocks(blocks: Array, x: NDArray[np.float64], dim: int) -> NDArray[np.float64]:
    """D x for blocks [c, n, b, b] and a vector [c d]; zero in rows that no block covers."""
    copies, count, size, _ = blocks.shape
    covered = min(dim, count * size)
    padded = np.zeros((copies, count * size), np.float32)
    padded[:, :covered] = x.reshape(copies, dim)[:, :covered]
    product = blocks @ padded.reshape(copies, count, size, 1)
    found = np.zeros((copies, dim))
    found[:, :covered] = product.reshape(copies, count * size)[:, :covered]
    return found.reshape(-1)


def multiply_thin(beside: Array | None, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """U^T U x for U [c, r, d] and a vector [c d]; zero if U is None."""
    if beside is None:
        return np.zeros_like(x)
    parts = x.reshape(beside.shape[0], beside.shape[2], 1).astype(np.float32)
    return (beside.transpose(0, 2, 1) @ (beside @ parts)).reshape(-1).astype(np.float64)


def position_major(dim: int, positions: int) -> NDArray[np.int64]:
    """The permutation [dim] from (channel, position) to (position, channel) order; a bias coordinate stays last."""
    channels = dim // positions
    order = np.arange(channels * positions).reshape(channels, positions).T.reshape(-1)
    return np.concatenate([order, np.arange(channels * positions, dim)])
