"""The form of a factor, and what is known of its inversion: what choosing a block size reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thor.factors.blocks import BlockPlan, Cut

#: A time within this factor of the launch floor says nothing about the block's size.
FLOOR_FACTOR = 1.5


@dataclass(frozen=True)
class Timing:
    """Seconds of one thing repeated: the median and the quartiles."""

    median: float
    low: float
    high: float
    repeats: int


@dataclass(frozen=True)
class FactorShape:
    """What a factor needs to be cut: enough to time and to measure its memory."""

    layer: str
    side: str  # "a" | "g"
    dim: int
    copies: int
    bias: bool = False  # whether the last row is a bias's
    across: int = 0  # rows of the layer's other factor, times copies

    @property
    def name(self) -> str:
        """As its Parameters are called."""
        return f"{self.layer}.{self.side}"

    def cut(self, plan: BlockPlan) -> Cut:
        """As the plan cuts it."""
        return plan.cut(self.dim, self.layer, self.side, bias=self.bias, across=self.across)


def shapes_of_layer(name: str, a: int, g: int, copies: int, bias: bool) -> tuple[FactorShape, FactorShape]:
    """Of a layer with factors of so many rows."""
    return (
        FactorShape(name, "a", a, copies, bias, across=copies * g),
        FactorShape(name, "g", g, copies, across=copies * a),
    )


def floor_reaches(dims: Sequence[int], seconds: Sequence[float]) -> int | None:
    """The largest candidate whose time is within 1.5 times the launch floor; None if the first is the only one."""
    flat = [dim for dim, value in zip(dims, seconds, strict=True) if value <= FLOOR_FACTOR * seconds[0]]
    return max(flat) if len(flat) > 1 else None
