"""The state of one Kronecker factor as named Parameters: an estimate, and a cached inverse or eigenbasis.

A factor holds an *estimate* (running averages, updated at every curvature step) and a *cache* (the damped inverse of a
:class:`Factor`, the eigenbasis of a :class:`BasisFactor`, updated when the trace rule decides so). Both are Parameters,
so that a checkpoint restores them exactly. With c copies (groups), n blocks of b rows, and rank r:

    estimate   blocks [c, n, b, b]   diagonal blocks of the factor
               beside [c, n b, r]    the scaled mean (r = 1), or Z = A Q of the low-rank part; [1] for plain blocks
               probe  as beside      Q of "block+rank"; in every split, its gradient is the fresh value of beside
               uses   [1]            uses of the layer in one forward pass (a tied table's G: thor/capture/pair_taps.py)
    cache      inverse [c, n, b, b]  D^-1, where D holds the damped diagonal blocks of A - U^T U
               s      [c, n b, r]    Woodbury: (D + U^T U)^-1 = D^-1 - s t
               t      [c, r, n b]

The estimates are sums over the uses of a layer. The factor is the blocks times ``scale``: 1 for G, the sum over the
uses, and 1 / uses for A, their mean, so that A (x) G is the sum of the uses' Fishers if they are alike.

If the bias is separate (thor/factors/blocks.py), beside and probe have n b + 1 rows, and the inverse is bordered:

    [[D^-1 - s t_x,  s h],    with t = [t_x, t_b] of [c, r + 1, n b], and bias_inverse = [h, m] of [c, r + 1, 1]
     [       - t_b,    m]]

If the cut has ``whole_inverse`` (thor/factors/blocks.py), inverse is the damped inverse multiplied out, with a separate
bias's row and column: [c, 1, dim, dim] without padding. s and t are unused then.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from mindspore import Parameter

from thor.factors.blocks import Cut
from thor.runtime.parameters import parameter


class FactorEstimate:
    """The running averages of one Kronecker factor of one layer; subclasses add what a refresh makes of them.

    ``held`` is False if only other ranks of a data-parallel job hold the cache. Each Parameter of it then has one
    element.
    """

    cache_shapes: tuple[tuple[int, ...], ...]  # on ranks that hold it
    cache: tuple[Parameter, ...]

    def __init__(self, name: str, cut: Cut, copies: int, *, diagonal: bool = False, held: bool = True):
        self.name, self.cut, self.copies, self.held = name, cut, copies, held
        self.diagonal = diagonal  # by the layer's kind, not because the plan has blocks of one row
        blocks, thin, _, _ = cut.estimate_shapes(copies)
        self.blocks = parameter(f"{name}.blocks", np.zeros(blocks, np.float32))
        self.beside = parameter(f"{name}.beside", np.zeros(thin, np.float32))
        self.probe = parameter(f"{name}.probe", self._first_probe(thin))
        self.uses = parameter(f"{name}.uses", np.ones(1, np.float32))
        self.scale_by: Callable[[], float] = _one  # what answers ``scale``

    def _first_probe(self, thin: tuple[int, ...]) -> np.ndarray:
        """Orthonormal random columns, seeded by the factor's name and so the same in every run."""
        probe = np.zeros(thin, np.float32)
        if self.cut.split == "block+rank":
            rng = np.random.default_rng(zlib.crc32(self.name.encode()))
            for copy in range(self.copies):
                q, _ = np.linalg.qr(rng.standard_normal((self.cut.dim, self.cut.rank)))
                probe[copy, : self.cut.dim] = q
        return probe

    @property
    def port_parameters(self) -> tuple[Parameter, Parameter, Parameter]:
        """The Parameters that a port differentiates by: their gradients are the fresh statistics."""
        return self.blocks, self.probe, self.uses

    @property
    def estimates(self) -> tuple[Parameter, Parameter, Parameter]:
        """The running averages of the fresh statistics, in the order of :attr:`port_parameters`."""
        return self.blocks, self.beside, self.uses

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All Parameters, for checkpoints."""
        return (*self.estimates, self.probe, *self.cache)

    @property
    def scale(self) -> float:
        """What the estimates are multiplied by."""
        return self.scale_by()

    @property
    def count(self) -> float:
        """Uses of the layer in one forward pass, on the average."""
        return float(self.uses.asnumpy()[0])

    @property
    def divisor(self) -> float:
        """What sums over the uses are divided by: their number, or 1 for a layer without uses, whose sums are zero."""
        return self.count or 1.0

    def sums(self) -> np.ndarray:
        """The trace of each copy's estimate without ``scale``, [c] float64: with the entry of a separate bias.

        The bias's entry is u_b^2 / uses, with u_b its entry in the scaled mean, as in :func:`low_rank_part`.
        """
        traces: np.ndarray = np.einsum("cnii->c", self.blocks.asnumpy(), dtype=np.float64)
        if self.cut.bias_apart:
            traces += self.beside.asnumpy()[:, -1, 0].astype(np.float64) ** 2 / self.divisor
        return traces

    def traces(self) -> np.ndarray:
        """The trace of each copy's factor, [c] float32."""
        return (self.scale * self.sums()).astype(np.float32)

    def dense(self) -> np.ndarray:
        """The factor as its split approximates it: [c, dim, dim] float32, or [c, dim] if it is diagonal."""
        blocks = np.float32(self.scale) * self.blocks.asnumpy()
        if self.diagonal:
            return blocks.reshape(self.copies, -1)
        full = assemble(blocks, self.cut.thin)
        u = low_rank_part(self)
        if u is not None:
            shared = np.einsum("cri,crj->cij", u, u)
            inside = assemble(np.ones((1, *blocks.shape[1:])), self.cut.thin) > 0
            full = np.where(inside, full, shared)  # the factor itself inside the blocks, U^T U outside
        return without_padding(full, self.cut)


class Factor(FactorEstimate):
    """A factor with its cached damped inverse."""

    def __init__(self, name: str, cut: Cut, copies: int, *, diagonal: bool = False, held: bool = True):
        super().__init__(name, cut, copies, diagonal=diagonal, held=held)
        self.cache_shapes = cut.cache_shapes(copies)
        inverse, s, t, *bias = self.cache_shapes
        identity = np.broadcast_to(np.eye(inverse[-1], dtype=np.float32), inverse)
        self.inverse = parameter(f"{name}.inverse", identity if held else np.zeros(1, np.float32))
        self.s = parameter(f"{name}.s", np.zeros(s if held else 1, np.float32))
        self.t = parameter(f"{name}.t", np.zeros(t if held else 1, np.float32))
        self.bias_inverse = None
        self.cache = (self.inverse, self.s, self.t)
        if bias:
            first = np.zeros(bias[0], np.float32)
            first[:, -1] = 1.0
            self.bias_inverse = parameter(f"{name}.bias_inverse", first if held else np.zeros(1, np.float32))
            self.cache = (*self.cache, self.bias_inverse)

    def dense_inverse(self) -> np.ndarray:
        """The damped inverse as it is applied: [c, dim, dim] float32, or [c, dim] if it is diagonal."""
        if self.diagonal:
            return self.inverse.asnumpy().reshape(self.copies, -1).copy()
        if self.cut.whole_inverse:
            return self.inverse.asnumpy()[:, 0].copy()
        full = assemble(self.inverse.asnumpy(), self.cut.padded)
        if self.cut.rank:
            s, t = self.s.asnumpy(), self.t.asnumpy()
            full = full - s @ t[:, : self.cut.rank]
            if self.bias_inverse is not None:
                bias = self.bias_inverse.asnumpy()
                right = np.concatenate([s @ bias[:, :-1], bias[:, -1:]], 1)
                full = np.concatenate([np.concatenate([full, -t[:, -1:]], 1), right], 2)
        return without_padding(full, self.cut)


class BasisFactor(FactorEstimate):
    """A factor with the eigenvectors of its blocks, the columns of ``basis`` [c, n, b, b].

    A diagonal factor is its own eigenbasis, and has no basis stored.
    """

    def __init__(self, name: str, cut: Cut, copies: int, *, diagonal: bool = False, held: bool = True):
        super().__init__(name, cut, copies, diagonal=diagonal, held=held)
        self.cache, self.cache_shapes = (), cut.basis_shapes(copies)
        self.turns = bool(self.cache_shapes)
        if self.turns:
            identity = np.broadcast_to(np.eye(cut.size, dtype=np.float32), self.cache_shapes[0])
            self.basis = parameter(f"{name}.basis", identity if held else np.zeros(1, np.float32))
            self.cache = (self.basis,)

    def dense_basis(self) -> np.ndarray:
        """The basis as a matrix, [c, dim, dim] float32; the identity for a diagonal factor."""
        if not self.turns:
            return np.broadcast_to(np.eye(self.cut.dim, dtype=np.float32), (self.copies, *[self.cut.dim] * 2)).copy()
        return without_padding(assemble(self.basis.asnumpy(), self.cut.padded), self.cut)


def _one() -> float:
    """The scale of a factor whose estimate it is."""
    return 1.0


def assemble(blocks: np.ndarray, rows: int) -> np.ndarray:
    """Blocks [c, n, b, b] on the diagonal of [c, rows, rows], with zeros elsewhere."""
    copies, count, size, _ = blocks.shape
    full = np.zeros((copies, rows, rows), blocks.dtype)
    for index in range(count):
        part = slice(index * size, (index + 1) * size)
        full[:, part, part] = blocks[:, index]
    return full


def squeezed(matrix: np.ndarray) -> np.ndarray:
    """The matrix without its axis of groups if there is only one group."""
    return matrix[0] if len(matrix) == 1 else matrix


def without_padding(full: np.ndarray, cut: Cut) -> np.ndarray:
    """A matrix without the padding of its cut: [c, dim, dim] float32."""
    if cut.thin > cut.dim:
        full = full[:, cut.kept][:, :, cut.kept]
    return full.astype(np.float32)


def low_rank_part(factor: FactorEstimate) -> np.ndarray | None:
    """U [c, r, n b (+1)] in float64 with A - U^T U positive semi-definite, from the estimate; None for plain blocks.

    "block+mean": U is the scaled mean. The estimate of a layer used k times is a sum of k means, which is divided by
    sqrt(k): sum_i A_i - (1/k) (sum u)(sum u)^T is positive semi-definite. So it is for any average of such sums, with
    the average of k. Times ``scale``, as the blocks are.

    "block+rank": Nystroem, U = W^(-1/2) Z^T with W = Q^T Z. Eigenvectors of W whose eigenvalue is numerically zero are
    dropped, which keeps U^T U below A.
    """
    if not factor.cut.rank:
        return None
    beside = factor.beside.asnumpy().astype(np.float64)
    if factor.cut.split == "block+mean":
        return beside.transpose(0, 2, 1) * np.sqrt(factor.scale / factor.divisor)
    beside, probe = factor.scale * beside, factor.probe.asnumpy().astype(np.float64)
    w = probe.transpose(0, 2, 1) @ beside
    values, vectors = np.linalg.eigh((w + w.transpose(0, 2, 1)) / 2)
    keep = values > 1e-6 * np.maximum(values[:, -1:], 1e-300)
    roots = np.where(keep, 1.0 / np.sqrt(np.where(keep, values, 1.0)), 0.0)
    return roots[:, :, None] * (vectors.transpose(0, 2, 1) @ beside.transpose(0, 2, 1))
