"""Shapes of factors and timings of their inversion: the inputs of the choice of a block size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thor.factors.blocks import BlockPlan, Cut

#: A time up to this multiple of the launch floor is taken to be independent of the block size.
FLOOR_FACTOR = 1.5


@dataclass(frozen=True)
class Timing:
    """Seconds of a repeated call: median and quartiles. ``repeats`` is 0 for a modelled time."""

    median: float
    low: float
    high: float
    repeats: int


@dataclass(frozen=True)
class FactorShape:
    """The dimensions of one factor: enough to cut it, to time its inversion and to count its memory."""

    layer: str
    side: str  # "a" | "g"
    dim: int
    copies: int  # groups of a convolution, 1 otherwise
    bias: bool = False  # whether the last row belongs to the bias
    across: int = 0  # rows of the layer's other factor, times copies

    @property
    def name(self) -> str:
        """The prefix of the names of the factor's Parameters."""
        return f"{self.layer}.{self.side}"

    def cut(self, plan: BlockPlan) -> Cut:
        """The factor's cut under a plan."""
        return plan.cut(self.dim, self.layer, self.side, bias=self.bias, across=self.across)


def shapes_of_layer(name: str, a: int, g: int, copies: int, bias: bool) -> tuple[FactorShape, FactorShape]:
    """The shapes of a layer's two factors, A with ``a`` rows and G with ``g`` rows."""
    return (
        FactorShape(name, "a", a, copies, bias, across=copies * g),
        FactorShape(name, "g", g, copies, across=copies * a),
    )


def largest_at_launch_floor(dims: Sequence[int], seconds: Sequence[float]) -> int | None:
    """The largest candidate whose time is at most 1.5 times that of the first, the launch floor.

    None if there is no such candidate but the first.
    """
    flat = [dim for dim, value in zip(dims, seconds, strict=True) if value <= FLOOR_FACTOR * seconds[0]]
    return max(flat) if len(flat) > 1 else None
