"""The costs of each layer of a profiled network: bytes, operations and times of inverses (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from thor.distributed.packing import packed_length
from thor.distributed.placement import FactorWork, block_cost
from thor.factors.blocks import BlockPlan, Cut, numbers_in
from thor.profile.layer_plan import block_seconds
from thor.profile.profile_file import OTHER_ENTRIES, FactorMeasure, Profile

_FLOAT = 4  # bytes: factors, inverses and gradients are float32


@dataclass(frozen=True)
class FactorLoad:
    """The costs of one factor."""

    work: FactorWork
    size: int  # rows of a block
    block_seconds: float  # to invert one block
    estimate_bytes: int
    averaged_bytes: int  # in the message that averages it over ranks
    inverse_bytes: int

    @property
    def seconds(self) -> float:
        """Seconds to invert all blocks."""
        return self.work.blocks * self.block_seconds

    def piece_bytes(self, blocks: int) -> int:
        """Bytes of a message with the inverses of some blocks, as triangles.

        The mean or low-rank part is not sent: every rank computes it.
        """
        return _FLOAT * packed_length(blocks, self.size)


@dataclass(frozen=True)
class LayerLoad:
    """The costs of one layer: its factors (A, G), bytes of its gradient, and operations to precondition it."""

    name: str
    factors: tuple[FactorLoad, FactorLoad]
    gradient_bytes: int
    operations: int

    @property
    def inverse_bytes(self) -> int:
        """Bytes of both inverses, held by every rank of the layer's column."""
        return sum(factor.inverse_bytes for factor in self.factors)

    @property
    def estimate_bytes(self) -> int:
        """Bytes of both estimates, held by every rank."""
        return sum(factor.estimate_bytes for factor in self.factors)


def layer_loads(profile: Profile, plan: BlockPlan) -> list[LayerLoad]:
    """The loads of a profiled network's layers under a plan; the seconds of a block's inverse come from the profile."""
    loads = []
    for index, layer in enumerate(profile.layers):
        a, g = (shape.cut(plan) for shape in layer.shapes)
        factors = _factor(profile, index, layer.a, a), _factor(profile, index, layer.g, g)
        entries = layer.a.copies * layer.a.dim * layer.g.dim
        operations = 2 * entries * (_rows_met(a) + _rows_met(g))  # X A^-1 and G^-1 X
        loads.append(LayerLoad(layer.name, factors, _FLOAT * entries, operations))
    return loads


def other_gradient_bytes(profile: Profile) -> int:
    """Bytes of the gradients of weights outside the profiled layers; 0 where a profile does not tell."""
    return _FLOAT * int(profile.settings.get(OTHER_ENTRIES, 0))


def _rows_met(cut: Cut) -> int:
    """Multiplications per gradient entry: rows of the inverse, or of its block plus two products with rank columns."""
    return cut.dim if cut.whole_inverse else cut.size + 2 * cut.rank


def _factor(profile: Profile, layer: int, factor: FactorMeasure, cut: Cut) -> FactorLoad:
    """The load of one factor of the layer with index ``layer``.

    Held bytes are counted as in :func:`thor.profile.timing.state_bytes`. Messages hold blocks as triangles.
    """
    blocks = factor.copies * cut.count
    work = FactorWork(layer, factor.side, blocks, block_cost(cut.size))
    estimate = cut.estimate_shapes(factor.copies)
    beside = numbers_in(estimate[1:2]) if cut.rank else 0
    return FactorLoad(
        work,
        cut.size,
        block_seconds(profile, cut.size),
        estimate_bytes=_FLOAT * numbers_in(estimate),
        averaged_bytes=_FLOAT * (packed_length(blocks, cut.size) + beside),
        inverse_bytes=_FLOAT * numbers_in(cut.cache_shapes(factor.copies)),
    )
