"""How much of a Kronecker factor a split keeps (pure NumPy and SciPy).

    loss    L = 1 - ||A_hat||_2 / ||A||_2     THOR's measure: A_hat the diagonal blocks of A (AAAI 2021)
    error   ||A - A_hat||_2 / ||A||_2         of the whole approximation, blocks and what stands beside them
    cosine  between the split's and the unsplit preconditioned gradient of the layer's real gradient

L sees the largest eigenvalue only, which the mean or a low rank already holds; the two others see all of it.

A factor is a stack [c, d, d]: c copies (groups of a convolution) are a block-diagonal matrix, so its norm is the
largest of theirs. Spectral norms come from Lanczos (SciPy's ``eigsh``) on products alone: no factor is decomposed.
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

#: Relative accuracy of a spectral norm: far below the 1 % that decides whether a factor counts as kept.
TOLERANCE = 1e-5
_DENSE_BELOW = 24  # Lanczos needs room: matrices up to this size are decomposed
SUBSPACE_STEPS = 3


def spectral_norm(apply: Apply, size: int) -> float:
    """The largest |eigenvalue| of a symmetric operator on vectors of ``size``."""
    if size <= _DENSE_BELOW:
        dense = np.stack([apply(column) for column in np.eye(size)], 1)
        return float(np.abs(np.linalg.eigvalsh((dense + dense.T) / 2)).max())
    start = np.random.default_rng(0).standard_normal(size)
    operator = LinearOperator((size, size), matvec=lambda x: apply(np.ravel(x)), dtype=np.float64)
    if not np.any(apply(start)):
        return 0.0  # the zero operator (a random vector is orthogonal to nothing else)
    try:
        found = eigsh(operator, 1, which="LM", v0=start, tol=TOLERANCE, return_eigenvectors=False, maxiter=40)
    except ArpackNoConvergence as error:
        found = np.asarray(error.eigenvalues, np.float64)
        if not len(found):
            return _power_iteration(apply, start)
    return float(np.abs(found).max())


def _power_iteration(apply: Apply, x: NDArray[np.float64], steps: int = 100) -> float:
    """A lower bound that converges to the norm, for a spectrum on which Lanczos gave nothing."""
    norm = 0.0
    for _ in range(steps):
        x = x / np.linalg.norm(x)
        x = apply(x)
        norm = float(np.linalg.norm(x))
    return norm


class Split:
    """A stack of factors [c, d, d], or its approximation by ``cut``: blocks D, and directions U beside them.

    Args:
        factor: the factor A.
        cut: how it is cut.
        mean: the scaled mean u [c, d] for "block+mean", with A - u u^T positive semi-definite.
    """

    def __init__(self, factor: Array, cut: Cut, mean: Array | None = None):
        self.factor, self.cut = factor, cut
        self.copies, self.dim = factor.shape[0], factor.shape[1]
        self.rows = self.dim - cut.bias_apart  # that the blocks cover
        self.beside = _directions(factor, cut, mean)  # U [c, r, d] or None

    def blocks(self, correct: bool = True) -> Array:
        """D [c, n, b, b]: the diagonal blocks of A - U^T U (of A itself without ``correct``), zeros behind dim."""
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
        """||A - A_hat||_2 / ||A||_2, ``norm`` being ||A||_2."""
        blocks = self.blocks()

        def difference(x: NDArray[np.float64]) -> NDArray[np.float64]:
            return multiply(self.factor, x) - multiply_blocks(blocks, x, self.dim) - multiply_thin(self.beside, x)

        return spectral_norm(difference, self.copies * self.dim) / norm if norm > 0 else 0.0

    def solve(self, damping: NDArray[np.float64], right: Array) -> Array:
        """(A_hat + damping I)^-1 X, copy by copy, for X [c, d, m]: Cholesky of the blocks, Woodbury beside them."""
        return np.stack([self._solve(copy, float(damping[copy]), right[copy]) for copy in range(self.copies)])

    def _solve(self, copy: int, damping: float, right: Array) -> Array:
        thin = None if self.beside is None else self.beside[copy].T
        whole = right if thin is None else np.concatenate([right, thin], 1)
        solved = np.empty_like(whole)
        for index in range(self.cut.count):
            rows = slice(index * self.cut.size, min(self.rows, (index + 1) * self.cut.size))
            if rows.start >= self.rows:
                break
            block = self.factor[copy, rows, rows].copy()
            if thin is not None:
                block -= thin[rows] @ thin[rows].T
            solved[rows] = solve_damped(block, damping, whole[rows])
        if self.cut.bias_apart:
            solved[-1] = whole[-1] / damping
        if thin is None:
            return solved
        x, s = solved[:, : right.shape[1]], solved[:, right.shape[1] :]
        small = np.eye(thin.shape[1], dtype=np.float32) + thin.T @ s
        return x - s @ np.linalg.solve(small, s.T @ right)


def spectral_loss(factor: Array, cut: Cut, norm: float) -> float:
    """THOR's L = 1 - ||A_hat||_2 / ||A||_2 in [0, 1]: what the plain blocks lose of the largest eigenvalue."""
    if cut.count == 1 or norm <= 0:
        return 0.0
    blocks = Split(factor, Cut(cut.dim, cut.size, cut.count)).blocks()
    size = factor.shape[0] * factor.shape[1]
    kept = spectral_norm(lambda x: multiply_blocks(blocks, x, factor.shape[1]), size)
    return float(np.clip(1.0 - kept / norm, 0.0, 1.0))


def factor_norm(factor: Array) -> float:
    """||A||_2 of a stack of factors."""
    return spectral_norm(lambda x: multiply(factor, x), factor.shape[0] * factor.shape[1])


def solve_damped(block: Array, damping: float, right: Array) -> Array:
    """(block + damping I)^-1 right; rounding that leaves no positive definite matrix gets ten times more damping."""
    for _ in range(6):
        damped = block.copy()
        np.fill_diagonal(damped, damped.diagonal() + damping)
        try:
            return cho_solve(cho_factor(damped, lower=True, overwrite_a=True, check_finite=False), right)
        except np.linalg.LinAlgError:
            damping *= 10.0
    raise np.linalg.LinAlgError("a block is not positive definite")


def _directions(factor: Array, cut: Cut, mean: Array | None) -> Array | None:
    """U [c, r, d]: the mean, or the Nystroem form of the dominant subspace (see thor/curvature/layer.py)."""
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
    """A x for a stack of factors and a flat vector."""
    parts = x.reshape(factor.shape[0], factor.shape[1], 1).astype(np.float32)
    return (factor @ parts).reshape(-1).astype(np.float64)


def multiply_blocks(blocks: Array, x: NDArray[np.float64], dim: int) -> NDArray[np.float64]:
    """D x for blocks [c, n, b, b]; zero in a row that they do not cover."""
    copies, count, size, _ = blocks.shape
    covered = min(dim, count * size)
    padded = np.zeros((copies, count * size), np.float32)
    padded[:, :covered] = x.reshape(copies, dim)[:, :covered]
    product = blocks @ padded.reshape(copies, count, size, 1)
    found = np.zeros((copies, dim))
    found[:, :covered] = product.reshape(copies, count * size)[:, :covered]
    return found.reshape(-1)


def multiply_thin(beside: Array | None, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """U^T U x."""
    if beside is None:
        return np.zeros_like(x)
    parts = x.reshape(beside.shape[0], beside.shape[2], 1).astype(np.float32)
    return (beside.transpose(0, 2, 1) @ (beside @ parts)).reshape(-1).astype(np.float64)


def position_major(dim: int, positions: int) -> NDArray[np.int64]:
    """The permutation from (channel, position) to (position, channel) order; a bias coordinate behind them stays."""
    channels = dim // positions
    order = np.arange(channels * positions).reshape(channels, positions).T.reshape(-1)
    return np.concatenate([order, np.arange(channels * positions, dim)])
