"""The state of captured layers as named Parameters: two clocks, kept apart.

A :class:`Factor` holds an *estimate* (running averages, refreshed at every curvature step) and a *cache* (the damped
inverse, refreshed when the trace rule says so). Both are Parameters, so a checkpoint restores them exactly.

    estimate   blocks [c, n, b, b]   diagonal blocks of the factor
               beside [c, n b, r]    the scaled mean (r = 1), or Z = A Q; [1] where nothing is kept
               probe  [c, n b, r]    Q of "block+rank"; the port's slot otherwise
               uses   [1]            how often the layer runs in one forward pass
    cache      inverse [c, n, b, b]  D^-1, D the damped blocks of what stands beside them
               s      [c, n b, r]    Woodbury: (D + U^T U)^-1 = D^-1 - s t
               t      [c, r, n b]

Where a bias stands apart (blocks.py), beside and probe have n b + 1 rows, and the inverse is bordered:

    [[D^-1 - s t_x,  s h],    with t = [t_x, t_b] of [c, r + 1, n b], and bias_inverse = [h, m] of [c, r + 1, 1]
     [       - t_b,    m]]

Where a cut keeps its inverse whole (blocks.py), inverse is D^-1 - s t multiplied out, bordered if need be: [c, 1, dim,
dim], without padding; s and t hold nothing then.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, nn

from thor.capture.attach import attach
from thor.capture.targets import Target
from thor.factors.blocks import BlockPlan, Cut, diagonal_cut
from thor.precondition import Direction, DirectionElsewhere, Form
from thor.refresh import damped_trace, pi_split
from thor.runtime.graph_ops import shared
from thor.runtime.parameters import parameter

#: Calls a step, on the average, below which a layer's factors are of steps long gone, and too small by as much.
MIN_USES = 0.05


class Factor:
    """One Kronecker factor of one layer.

    ``held`` tells whether this process keeps its inverse; if not, other ranks of a data-parallel job do, and the cache
    is one element wide.
    """

    def __init__(self, name: str, cut: Cut, copies: int, *, diagonal: bool = False, held: bool = True):
        self.name, self.cut, self.copies, self.held = name, cut, copies, held
        self.diagonal = diagonal  # by the layer's kind, not because the plan cuts that small
        self.cache_shapes = cut.cache_shapes(copies)  # where it is held
        inverse, s, t, *bias = self.cache_shapes
        blocks, thin, _, _ = cut.estimate_shapes(copies)
        self.blocks = parameter(f"{name}.blocks", np.zeros(blocks, np.float32))
        self.beside = parameter(f"{name}.beside", np.zeros(thin, np.float32))
        self.probe = parameter(f"{name}.probe", self._first_probe(thin))
        self.uses = parameter(f"{name}.uses", np.ones(1, np.float32))
        identity = np.broadcast_to(np.eye(inverse[-1], dtype=np.float32), inverse)
        self.inverse = parameter(f"{name}.inverse", identity if held else np.zeros(1, np.float32))
        self.s = parameter(f"{name}.s", np.zeros(s if held else 1, np.float32))
        self.t = parameter(f"{name}.t", np.zeros(t if held else 1, np.float32))
        self.bias_inverse = None
        if bias:
            first = np.zeros(bias[0], np.float32)
            first[:, -1] = 1.0
            self.bias_inverse = parameter(f"{name}.bias_inverse", first if held else np.zeros(1, np.float32))

    def _first_probe(self, thin: tuple[int, ...]) -> np.ndarray:
        """Orthonormal random directions, the same in every run: seeded by the factor's name."""
        probe = np.zeros(thin, np.float32)
        if self.cut.split == "block+rank":
            rng = np.random.default_rng(zlib.crc32(self.name.encode()))
            for copy in range(self.copies):
                q, _ = np.linalg.qr(rng.standard_normal((self.cut.dim, self.cut.rank)))
                probe[copy, : self.cut.dim] = q
        return probe

    @property
    def port_parameters(self) -> tuple[Parameter, Parameter, Parameter]:
        """What a port differentiates: its gradients are the fresh statistics."""
        return self.blocks, self.probe, self.uses

    @property
    def estimates(self) -> tuple[Parameter, Parameter, Parameter]:
        """Where the fresh statistics are averaged into, in the order of :attr:`port_parameters`."""
        return self.blocks, self.beside, self.uses

    @property
    def cache(self) -> tuple[Parameter, ...]:
        """The damped inverse."""
        apart = () if self.bias_inverse is None else (self.bias_inverse,)
        return (self.inverse, self.s, self.t, *apart)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Everything, for checkpoints."""
        return (*self.estimates, self.probe, *self.cache)

    def traces(self) -> np.ndarray:
        """Of each copy's estimate, [c] float32: its blocks', and where a bias stands apart, its entry of the mean's.

        The mean entry's square over the uses is the mean's share of it, as in :func:`directions`.
        """
        found = np.einsum("cnii->c", self.blocks.asnumpy(), dtype=np.float64)
        if self.cut.bias_apart:
            found += self.beside.asnumpy()[:, -1, 0].astype(np.float64) ** 2 / max(1.0, float(self.uses.asnumpy()[0]))
        return found.astype(np.float32)

    def dense(self) -> np.ndarray:
        """The factor as it is approximated, [c, dim, dim] float32: blocks, and what stands beside them.

        [c, dim] where only the diagonal is kept.
        """
        blocks = self.blocks.asnumpy()
        if self.diagonal:
            return blocks.reshape(self.copies, -1).copy()
        full = assemble(blocks, self.cut.thin)
        beside = directions(self)
        if beside is not None:
            shared = np.einsum("cri,crj->cij", beside, beside)
            inside = assemble(np.ones((1, *blocks.shape[1:])), self.cut.thin) > 0
            full = np.where(inside, full, shared)  # inside a block the factor itself, outside U^T U
        return without_padding(full, self.cut)

    def dense_inverse(self) -> np.ndarray:
        """The damped inverse as it is applied, [c, dim, dim] float32, or [c, dim] where it is diagonal."""
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


def assemble(blocks: np.ndarray, rows: int) -> np.ndarray:
    """[c, n, b, b] on the diagonal of [c, rows, rows], zero elsewhere."""
    copies, count, size, _ = blocks.shape
    full = np.zeros((copies, rows, rows), blocks.dtype)
    for index in range(count):
        part = slice(index * size, (index + 1) * size)
        full[:, part, part] = blocks[:, index]
    return full


def squeezed(matrix: np.ndarray) -> np.ndarray:
    """Without the axis of groups, where there is one group."""
    return matrix[0] if len(matrix) == 1 else matrix


def without_padding(full: np.ndarray, cut: Cut) -> np.ndarray:
    """[c, dim, dim] float32 of a matrix that has the cut's padding too."""
    return full[:, cut.kept][:, :, cut.kept].astype(np.float32)


def directions(factor: Factor) -> np.ndarray | None:
    """U [c, r, n b] in float64 with A - U^T U positive semi-definite, from the estimate; None for plain blocks.

    Mean: the scaled mean; a layer used k times sums k means, and sum_i A_i - (1/k) (sum u)(sum u)^T is still positive
    semi-definite. Rank: Nystroem, U = W^(-1/2) Z^T with W = Q^T Z; directions in which W is numerically zero carry
    nothing and are dropped, which keeps U^T U below A.
    """
    if not factor.cut.rank:
        return None
    beside = factor.beside.asnumpy().astype(np.float64)
    if factor.cut.split == "block+mean":
        return beside.transpose(0, 2, 1) / np.sqrt(max(1.0, float(factor.uses.asnumpy()[0])))
    probe = factor.probe.asnumpy().astype(np.float64)
    w = probe.transpose(0, 2, 1) @ beside
    values, vectors = np.linalg.eigh((w + w.transpose(0, 2, 1)) / 2)
    keep = values > 1e-6 * np.maximum(values[:, -1:], 1e-300)
    roots = np.where(keep, 1.0 / np.sqrt(np.where(keep, values, 1.0)), 0.0)
    return roots[:, :, None] * (vectors.transpose(0, 2, 1) @ beside.transpose(0, 2, 1))


class Layer:
    """A captured layer: its weights, its two factors, its ports."""

    def __init__(self, target: Target, plan: BlockPlan, *, held: bool = True, share: float = 1.0):
        self.held = held
        self.name, self.kind, self.cells = target.name, target.kind, target.cells
        self.weight, self.bias, self.copies = target.weight, target.bias, target.copies
        a_cut, g_cut = cuts_of(target, plan)
        no_dense_a, no_dense_g = target.kind not in ("dense", "conv"), target.kind.startswith("norm")
        self.a = Factor(f"{target.name}.a", a_cut, target.copies, diagonal=no_dense_a, held=held)
        self.g = Factor(f"{target.name}.g", g_cut, target.copies, diagonal=no_dense_g, held=held)
        # A of an embedding stands for the rows of its table, in any other layer for the columns of the weight
        self.rows, self.columns = (self.a, self.g) if target.kind in ("embedding", "tied") else (self.g, self.a)
        #: G alone is inverted, with the whole damping; A is 1 and stays so
        self.single = target.kind.startswith("norm")
        self.powers = _scale_powers(target.kind, g_cut)
        # of a convolution whose A is cut: its kernel positions, if they come first in A's order
        area = math.prod(self.weight.shape[2:])
        self.positions = area if plan.order == "position" and self.a.cut.count > 1 else 1
        self.ports: list[Any] = attach(
            target, self.a.cut, self.g.cut, self.a.port_parameters, self.g.port_parameters,
            "position" if self.positions > 1 else "channel", share,
        )  # fmt: skip

    @property
    def port_parameters(self) -> tuple[Parameter, ...]:
        """(blocks, probe, uses) of A, then of G."""
        return (*self.a.port_parameters, *self.g.port_parameters)

    @property
    def estimates(self) -> tuple[Parameter, ...]:
        """Where the fresh statistics go, in the same order."""
        return (*self.a.estimates, *self.g.estimates)

    @property
    def caches(self) -> tuple[Parameter, ...]:
        """(inverse, s, t) of A, or what stands for the columns of the weight, of the rows', and A's of a bias apart."""
        apart = () if self.a.bias_inverse is None else (self.a.bias_inverse,)
        return (*self.columns.cache[:3], *self.rows.cache[:3], *apart)

    def direction(self) -> nn.Cell:
        """What makes directions of this layer's gradients, one Cell for all layers of one form."""
        if not self.held:
            return shared(DirectionElsewhere)
        form = Form(tuple(self.weight.shape), self.weight.dtype, self.bias is not None, self.copies, self.positions,
                    self.columns.cache_shapes, self.rows.cache_shapes)  # fmt: skip
        return shared(Direction, form)

    @property
    def bytes(self) -> int:
        """Memory of the layer's curvature state."""
        return sum(p.nbytes for f in (self.a, self.g) for p in f.parameters)

    @property
    def cost(self) -> float:
        """Relative cost of gathering and inverting the factors: what a stopped layer saves."""
        return float(sum(f.copies * f.cut.count * f.cut.size**3 for f in (self.a, self.g)))

    @property
    def used(self) -> bool:
        """Whether the network has called it in more than a few of the steps that its factors are averages over.

        A compiled graph does not call an input's port on a constant, and of its factor nothing is known either.
        """
        return all(float(factor.uses.asnumpy()[0]) > MIN_USES for factor in (self.a, self.g))

    def traces(self) -> np.ndarray:
        """Of the estimates: those of A's copies, then those of G's."""
        return np.concatenate([self.a.traces(), self.g.traces()])

    def damped_trace(self, damping: float, traces: np.ndarray) -> float:
        """The damped trace of the layer's Fisher block, from those of its factors [2, c].

        Groups are blocks of their own, so their traces add up.
        """
        if self.single:
            return float(traces[1].sum()) + damping * self.g.cut.dim
        return sum(damped_trace(damping, a, g, self.a.cut.dim, self.g.cut.dim) for a, g in traces.T.tolist())

    def dampings(self, damping: float, traces: np.ndarray) -> dict[Factor, np.ndarray]:
        """What is added to each factor that is inverted, one number a copy: ``damping`` split by pi."""
        if self.single:
            return {self.g: np.full(self.copies, damping, np.float32)}
        parts = [pi_split(damping, a, g, self.a.cut.dim, self.g.cut.dim) for a, g in traces.T.tolist()]
        of_a, of_g = np.array(parts, np.float32).T
        return {self.a: of_a, self.g: of_g}

    def fingerprint(self) -> str:
        """What a checkpoint of this layer's state must agree with."""
        order = f":{self.positions}" if self.positions > 1 else ""
        return f"{self.name}:{self.kind}:{self.copies}:{self.a.cut}:{self.g.cut}{order}"


def by_layer(layers: Sequence[Layer], indices: Iterable[int], flat: np.ndarray) -> dict[int, np.ndarray]:
    """Traces [2, c] (of A, of G) of the layers ``indices``, of such a flat array."""
    found, first = {}, 0
    for i in indices:
        size = 2 * layers[i].copies
        found[i] = flat[first : first + size].reshape(2, -1)
        first += size
    return found


def cuts_of(target: Target, plan: BlockPlan) -> tuple[Cut, Cut]:
    """How A and G of a layer are cut."""
    if target.kind.startswith("norm"):
        return diagonal_cut(1), diagonal_cut(target.g_dim)
    g_cut = plan.cut(target.g_dim, target.name, "g", across=target.copies * target.a_dim)
    if target.kind == "embedding":
        return diagonal_cut(target.a_dim), g_cut
    if target.kind == "tied":
        # its sums are balanced with a square root, with which a mean would not scale
        plain = Cut(g_cut.dim, g_cut.size, g_cut.count) if g_cut.split == "block+mean" else g_cut
        return diagonal_cut(target.a_dim), plain
    across = target.copies * target.g_dim
    return plan.cut(target.a_dim, target.name, "a", bias=target.bias is not None, across=across), g_cut


def _scale_powers(kind: str, g_cut: Cut) -> tuple[int, int, int]:
    """Powers of the loss scale in the statistics (A's blocks, G's blocks, what stands beside G's)."""
    if kind == "tied":
        return 1, 1, 1
    return 0, 2, 1 if g_cut.split == "block+mean" else 2
