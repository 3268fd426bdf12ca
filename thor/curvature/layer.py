"""A captured layer with its two factors: traces, and the caches that precondition its gradients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from mindspore import Parameter, Tensor, nn

from thor.capture.attach import attach
from thor.capture.targets import Target, has_moving_statistics
from thor.curvature.damping import Damping, damped_trace, pi_split
from thor.curvature.dense_caches import dense_inverse, is_dense_faster
from thor.curvature.direction import Direction, DirectionElsewhere, Form
from thor.curvature.factor import Factor, FactorEstimate
from thor.curvature.inverter import Job
from thor.factors.blocks import BlockPlan, Cut, diagonal_cut
from thor.factors.statistics import POOLED
from thor.runtime.graph_ops import shared

#: Average number of calls per step below which a layer counts as unused: little is left of its last calls.
MIN_USES = 1e-3


class Layer(ABC):
    """A captured layer: its weights, its two factors, its ports. Subclasses say what a refresh makes of the factors.

    ``held`` is False if only other ranks of a data-parallel job hold what its gradients are preconditioned with.
    ``adoptions`` counts how often this object has taken new caches.
    """

    factor_class: type[FactorEstimate]
    kept: ClassVar[str]  # what is cached of a factor, in words

    def __init__(
        self, target: Target, plan: BlockPlan, *, held: bool = True, share: float = 1.0, sharing: str = POOLED
    ):
        self.held, self.sharing, self.transposed = held, sharing, target.transposed
        self.name, self.kind, self.cells = target.name, target.kind, target.cells
        self.weight, self.bias, self.copies = target.weight, target.bias, target.copies
        a_cut, g_cut = cuts_of(target, plan)
        is_table, is_norm = target.kind in ("embedding", "tied"), target.kind.startswith("norm")
        self.a = self.factor_class(f"{target.name}.a", a_cut, target.copies, diagonal=is_table or is_norm, held=held)
        self.g = self.factor_class(f"{target.name}.g", g_cut, target.copies, diagonal=is_norm, held=held)
        # A of a table and of a transposed convolution belongs to the rows of the weight, any other A to its columns
        rows_of_a = is_table or target.kind == "conv_transpose"
        self.row_factor, self.column_factor = (self.a, self.g) if rows_of_a else (self.g, self.a)
        #: True if only G is inverted, with all of the damping; A is 1 and stays so
        self.single = is_norm
        self.powers = _scale_powers(target.kind, g_cut)
        self.adoptions = 0
        # number of kernel positions if they come first in the order of a convolution's cut A, else 1
        reorders = target.kind == "conv" and plan.order == "position" and not target.channel_last
        self.positions = math.prod(self.weight.shape[2:]) if reorders and self.a.cut.count > 1 else 1
        self.ports = attach(
            target, self.a.cut, self.g.cut, self.a.port_parameters, self.g.port_parameters,
            "position" if self.positions > 1 or target.channel_last else "channel", share, sharing,
        )  # fmt: skip
        if not self.single:
            self.a.scale_by = self._tied_scale if target.kind == "tied" else self._mean_over_uses

    @property
    def port_parameters(self) -> tuple[Parameter, ...]:
        """(blocks, probe, uses) of A, then of G."""
        return (*self.a.port_parameters, *self.g.port_parameters)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All Parameters, for checkpoints."""
        return (*self.a.parameters, *self.g.parameters)

    @property
    @abstractmethod
    def caches(self) -> tuple[Parameter, ...]:
        """What the layer's gradients are preconditioned with."""

    @property
    @abstractmethod
    def form(self) -> Form:
        """The layer's form: layers of one form can be preconditioned together."""

    @abstractmethod
    def preconditioner(self, layers: int = 1) -> nn.Cell:
        """The Cell that preconditions the gradients of so many layers of this one's form; they all share it."""

    @property
    def held_by_few(self) -> list[tuple[Parameter, tuple[int, ...]]]:
        """The Parameters that only the ranks have which hold the layer, and their shapes there."""
        return [pair for f in (self.a, self.g) for pair in zip(f.cache, f.cache_shapes, strict=True)]

    def in_group(self, layers: int) -> tuple[nn.Cell, Callable[[Any], list[Tensor]]]:
        """The Cell for a group of so many layers of this one's form, and what makes a layer's part of its caches."""
        return self.preconditioner(layers), own_caches

    @abstractmethod
    def jobs(self, damping: Damping, traces: np.ndarray) -> tuple[Any, ...]:
        """The work of one refresh, a job for each factor, from the traces [2, c] of the factors."""

    def adopt(self, jobs: Sequence[Any]) -> None:
        """Store the results of a refresh."""
        for job in jobs:
            job.commit()
        self.adoptions += 1

    def _form(self, columns: tuple[tuple[int, ...], ...], rows: tuple[tuple[int, ...], ...]) -> Form:
        """The layer's form, for caches of these shapes."""
        shape = tuple(self.weight.shape)
        return Form(
            shape[::-1] if self.transposed else shape, self.weight.dtype, self.bias is not None, self.copies,
            self.positions, columns, rows, self.transposed,
        )  # fmt: skip

    @property
    def bytes(self) -> int:
        """Bytes of the layer's curvature state."""
        return sum(p.nbytes for p in self.parameters)

    @property
    def cost(self) -> float:
        """Relative cost of gathering and inverting the factors, which a stopped layer saves."""
        return float(sum(f.copies * f.cut.count * f.cut.size**3 for f in (self.a, self.g)))

    @property
    def used(self) -> bool:
        """True if the network has called the layer in the steps that its factors average over.

        False also for a layer with a constant input: a compiled graph does not call the port of a constant, so that
        A is unknown.
        """
        counted = (self.a,) if self.kind == "tied" else (self.a, self.g)  # G of a tied table counts its Fisher's trace
        return all(factor.count > MIN_USES for factor in counted)

    @property
    def is_empty(self) -> bool:
        """True if no pass counts in the factors yet, as of a layer that was frozen so far.

        A pass that does not call the layer counts, and the number of its uses is then 0 and no longer 1.
        """
        return self.a.count == self.g.count == 1.0 and not self.traces().any()

    @property
    def has_moving_statistics(self) -> bool:
        """Whether this is a BatchNorm in evaluation mode: G is of a normalisation with the batch's statistics."""
        return self.kind.startswith("norm") and any(has_moving_statistics(cell) for cell in self.cells)

    def _mean_over_uses(self) -> float:
        """A is the mean over the uses."""
        count = self.a.count
        return 1.0 / count if count > MIN_USES else 1.0

    def _tied_scale(self) -> float:
        """The scale of A for which A (x) G has the sum of the traces of both uses' Fishers (capture/pair_taps.py)."""
        product = float((self.a.sums() * self.g.sums()).sum())
        return self.g.count / product if product > 0 else 1.0

    def traces(self) -> np.ndarray:
        """Traces of the estimates [2 c]: of A's copies, then of G's."""
        return np.concatenate([self.a.traces(), self.g.traces()])

    def damped_trace(self, damping: Damping, traces: np.ndarray) -> float:
        """The trace of the layer's damped Fisher block, from the traces [2, c] of its factors.

        Each group has a Fisher block of its own, so that the traces of groups add up.
        """
        added = self._added(damping, traces)
        if self.single:
            return float((traces[1] + added * self.g.cut.dim).sum())
        return sum(damped_trace(added, traces[0], traces[1], self.a.cut.dim, self.g.cut.dim).tolist())

    def _added(self, damping: Damping, traces: np.ndarray) -> Any:
        """What is added to the Fisher block of each copy."""
        of_a, dim_a = (1.0, 1) if self.single else (traces[0], self.a.cut.dim)
        return damping.of(of_a, traces[1], dim_a, self.g.cut.dim)

    def fingerprint(self) -> str:
        """A text that must be equal for a checkpoint to fit this layer's state."""
        order = f":{self.positions}" if self.positions > 1 else ""
        return f"{self.name}:{self.kind}:{self.copies}:{self.a.cut}:{self.g.cut}{order}"


class InverseLayer(Layer):
    """A layer whose gradients are multiplied by the damped inverses of its factors."""

    factor_class = Factor
    kept = "inverse"
    a: Factor
    g: Factor

    @property
    def caches(self) -> tuple[Parameter, ...]:
        """(inverse, s, t) of the factor of the weight's columns, then of its rows; A's bias_inverse if there is one."""
        bias = () if self.a.bias_inverse is None else (self.a.bias_inverse,)
        return (*self.column_factor.cache[:3], *self.row_factor.cache[:3], *bias)

    @property
    def form(self) -> Form:
        """The layer's form, with the shapes of its inverses."""
        return self._form(self.column_factor.cache_shapes, self.row_factor.cache_shapes)

    def preconditioner(self, layers: int = 1) -> nn.Cell:
        """The Cell that multiplies gradients by inverses."""
        if not self.held:
            return shared(DirectionElsewhere)
        return shared(Direction, self.form, layers)

    def in_group(self, layers: int) -> tuple[nn.Cell, Callable[[Any], list[Tensor]]]:
        """As for any layer, with a dense inverse of each factor for which that is faster."""
        column, row = self.column_factor, self.row_factor
        copies = layers * self.copies
        dense = (
            is_dense_faster(column.cut, copies * row.cut.padded),
            is_dense_faster(row.cut, copies * column.cut.padded),
        )
        if not any(dense):
            return super().in_group(layers)
        shapes = (
            ((self.copies, 1, f.cut.dim, f.cut.dim), (1,), (1,)) if is_dense else f.cache_shapes
            for f, is_dense in zip((column, row), dense, strict=True)
        )
        return shared(Direction, self._form(*shapes), layers), partial(InverseLayer.caches_with, dense=dense)

    def caches_with(self, dense: tuple[bool, bool]) -> list[Tensor]:
        """The caches, with dense inverses of the columns' factor, of the rows', or of both."""
        found: list[Tensor] = []
        bias: list[Tensor] = []
        for factor, is_dense in zip((self.column_factor, self.row_factor), dense, strict=True):
            if is_dense and isinstance(factor, Factor):
                unused = Tensor(np.zeros(1, np.float32))
                found += [dense_inverse(factor), unused, unused]
            else:
                found += [cache.value() for cache in factor.cache[:3]]
                bias += [cache.value() for cache in factor.cache[3:]]
        return found + bias

    def jobs(self, damping: Damping, traces: np.ndarray) -> tuple[Job, ...]:
        """The inversions of the factors that are inverted."""
        return tuple(Job(factor, each) for factor, each in self.dampings(damping, traces).items())

    def dampings(self, damping: Damping, traces: np.ndarray) -> dict[Factor, np.ndarray]:
        """The damping [c] of each factor that is inverted: ``damping`` split by pi, from the factors' traces [2, c]."""
        added = self._added(damping, traces)
        if self.single:
            return {self.g: np.broadcast_to(added, self.copies).astype(np.float32)}
        of_a, of_g = pi_split(added, traces[0], traces[1], self.a.cut.dim, self.g.cut.dim)
        return {self.a: of_a.astype(np.float32), self.g: of_g.astype(np.float32)}


def own_caches(layer: Layer) -> list[Tensor]:
    """The caches of a layer as they are."""
    return [cache.value() for cache in layer.caches]


def cuts_of(target: Target, plan: BlockPlan) -> tuple[Cut, Cut]:
    """The cuts of a layer's A and G."""
    if target.kind.startswith("norm"):
        return diagonal_cut(1), diagonal_cut(target.g_dim)
    g_cut = plan.cut(target.g_dim, target.name, "g", across=target.copies * target.a_dim)
    if target.kind == "embedding":
        return diagonal_cut(target.a_dim), g_cut
    if target.kind == "tied":
        # no mean: a square root balances the sums of the layer's two uses, and a mean would not scale with them
        plain = Cut(g_cut.dim, g_cut.size, g_cut.count) if g_cut.split == "block+mean" else g_cut
        return diagonal_cut(target.a_dim), plain
    across = target.copies * target.g_dim
    return plan.cut(target.a_dim, target.name, "a", bias=target.bias is not None, across=across), g_cut


def _scale_powers(kind: str, g_cut: Cut) -> tuple[int, int, int, int]:
    """Powers of the loss scale in the statistics: (A's blocks, G's blocks, G's mean or low-rank part, G's uses)."""
    if kind == "tied":
        return 1, 1, 1, 2
    return 0, 2, 1 if g_cut.split == "block+mean" else 2, 0
