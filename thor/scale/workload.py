"""What each layer of a profiled network costs: bytes, arithmetic, inverses (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from thor.blocks import BlockPlan, Cut, numbers_in
from thor.placement import FactorWork
from thor.profile.layer_plan import block_seconds
from thor.profile.records import FactorMeasure, Profile

_FLOAT = 4  # bytes: factors, inverses and gradients are float32


@dataclass(frozen=True)
class FactorLoad:
    """One factor: its inversion, and the bytes of its estimate, of what is averaged of it, and of its inverse."""

    work: FactorWork
    estimate_bytes: int
    averaged_bytes: int
    inverse_bytes: int

    def piece_bytes(self, blocks: int) -> float:
        """Of the inverse, for some of its blocks; what stands beside the blocks is shared among them evenly."""
        return self.inverse_bytes * blocks / self.work.blocks


@dataclass(frozen=True)
class LayerLoad:
    """One layer: its two factors, its gradient's bytes, and the operations that precondition it."""

    name: str
    factors: tuple[FactorLoad, FactorLoad]
    gradient_bytes: int
    operations: int

    @property
    def inverse_bytes(self) -> int:
        """Of both inverses: what a rank of the layer's column holds."""
        return sum(factor.inverse_bytes for factor in self.factors)

    @property
    def estimate_bytes(self) -> int:
        """Of both estimates: what every rank holds."""
        return sum(factor.estimate_bytes for factor in self.factors)


def layer_loads(profile: Profile, plan: BlockPlan) -> list[LayerLoad]:
    """The loads of a profiled network under a plan; an inverse's seconds are the profile's, block by block."""
    loads = []
    for index, layer in enumerate(profile.layers):
        a, g = (shape.cut(plan) for shape in layer.shapes)
        factors = _factor(profile, index, layer.a, a), _factor(profile, index, layer.g, g)
        entries = layer.a.copies * layer.a.dim * layer.g.dim
        operations = 2 * entries * (_rows_met(a) + _rows_met(g))  # X A^-1 and G^-1 X
        loads.append(LayerLoad(layer.name, factors, _FLOAT * entries, operations))
    return loads


def _rows_met(cut: Cut) -> int:
    """How many rows of an inverse each entry of a gradient meets: a block's and two thin products', or all."""
    return cut.dim if cut.whole_inverse else cut.size + 2 * cut.rank


def _factor(profile: Profile, layer: int, factor: FactorMeasure, cut: Cut) -> FactorLoad:
    """Bytes as :func:`thor.profile.timing.state_bytes` counts them."""
    blocks = factor.copies * cut.count
    work = FactorWork(layer, factor.side, blocks, block_seconds(profile, cut.size))
    estimate = cut.estimate_shapes(factor.copies)
    return FactorLoad(
        work,
        estimate_bytes=_FLOAT * numbers_in(estimate),
        averaged_bytes=_FLOAT * numbers_in(estimate[: 2 if cut.rank else 1]),
        inverse_bytes=_FLOAT * numbers_in(cut.cache_shapes(factor.copies)),
    )
