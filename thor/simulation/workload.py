"""What each layer of a profiled network costs: bytes, arithmetic, inverses (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from thor.distributed.packing import packed_length
from thor.distributed.placement import FactorWork, block_cost
from thor.factors.blocks import BlockPlan, Cut, numbers_in
from thor.profile.layer_plan import block_seconds
from thor.profile.profile_file import FactorMeasure, Profile

_FLOAT = 4  # bytes: factors, inverses and gradients are float32


@dataclass(frozen=True)
class FactorLoad:
    """One factor: its blocks, and bytes of its estimate, of what is averaged of it, and of its inverse."""

    work: FactorWork
    size: int
    block_seconds: float
    estimate_bytes: int
    averaged_bytes: int
    inverse_bytes: int

    @property
    def seconds(self) -> float:
        """Of inverting all blocks."""
        return self.work.blocks * self.block_seconds

    def piece_bytes(self, blocks: int) -> int:
        """In a message, of the inverses of some blocks: triangles; what stands beside them every rank makes itself."""
        return _FLOAT * packed_length(blocks, self.size)


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
    """Bytes held as :func:`thor.profile.timing.state_bytes` counts them; blocks travel as triangles."""
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
