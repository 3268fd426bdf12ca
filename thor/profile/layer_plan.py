"""A block size per factor: the smallest with a loss below the threshold, within a time budget per refresh (pure)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from thor.factors.blocks import BlockPlan, even_cut
from thor.profile.factor_shape import FactorShape
from thor.profile.profile_file import FactorMeasure, Profile


@dataclass(frozen=True)
class LayerPlan:
    """Block sizes (A, G) by layer, modelled seconds of a refresh, and names of the factors above the loss threshold."""

    sizes: dict[str, tuple[int, int]]
    seconds: float
    above: tuple[str, ...]

    def plan(self, split: str = "block+mean", rank: int = 16, order: str = "channel") -> BlockPlan:
        """The sizes as a plan for ``THOR(block_size=...)``."""
        layers = {f"^{re.escape(name)}$": sizes for name, sizes in self.sizes.items()}
        largest = max(max(sizes) for sizes in self.sizes.values())
        return BlockPlan(block_size=largest, split=split, rank=rank, order=order, layers=layers)


def block_seconds(profile: Profile, size: int) -> float:
    """Modelled seconds of one block in a batch: log-log interpolation of the profile, cubic beyond its largest size."""
    dims = np.log([float(dim) for dim in profile.dims])
    times = np.log([profile.blocks[dim].median for dim in profile.dims])
    beyond = size / profile.dims[-1]
    extra = 3 * math.log(beyond) if beyond > 1 else 0.0  # inverting a block is O(size^3)
    return float(np.exp(np.interp(math.log(size), dims, times) + extra))


def factor_seconds(profile: Profile, factor: FactorMeasure | FactorShape, block_size: int) -> float:
    """Modelled seconds of inverting a factor in blocks of at most ``block_size``."""
    size, count = even_cut(factor.dim, block_size)
    return factor.copies * count * block_seconds(profile, size)


def choose_per_layer(profile: Profile, budget: float = math.inf, order: str = "channel") -> LayerPlan:
    """Choose for each factor the smallest candidate with a loss below the threshold.

    A factor for which no candidate is good enough stays one block. While the modelled refresh exceeds ``budget``
    seconds, one factor moves to another candidate: the move that adds the least loss per second saved. The new
    candidate is usually smaller, but larger where many small blocks cost more than a few large ones.

    Raises:
        ValueError: if no choice of candidates stays within ``budget``.
    """
    if not budget > 0:
        raise ValueError(f"budget must be greater than 0 seconds, but got {budget}")
    factors = profile.factors
    options = [[*profile.dims] + ([f.dim] if f.dim > profile.dims[-1] else []) for f in factors]
    losses = [[*f.loss_in(order), 0.0][: len(o)] for f, o in zip(factors, options, strict=True)]
    costs = [[factor_seconds(profile, f, n) for n in o] for f, o in zip(factors, options, strict=True)]
    at = [next((i for i, x in enumerate(loss) if x < profile.threshold), len(loss) - 1) for loss in losses]
    total = sum(cost[i] for cost, i in zip(costs, at, strict=True))
    while total > budget:
        best, price = None, math.inf
        for k, i in enumerate(at):
            for j in range(len(costs[k])):
                saved = costs[k][i] - costs[k][j]
                if saved > 0 and (losses[k][j] - losses[k][i]) / saved < price:
                    best, price = (k, j), (losses[k][j] - losses[k][i]) / saved
        if best is None:
            raise ValueError(
                f"no plan refreshes within budget = {budget:g} s: the fastest takes {total:.3g} s on this device"
            )
        k, j = best
        total -= costs[k][at[k]] - costs[k][j]
        at[k] = j
    chosen = [options[k][i] for k, i in enumerate(at)]
    above = tuple(f.name for k, f in enumerate(factors) if losses[k][at[k]] >= profile.threshold)
    names = [layer.name for layer in profile.layers]
    sizes = {name: (chosen[2 * k], chosen[2 * k + 1]) for k, name in enumerate(names)}
    return LayerPlan(sizes, float(total), above)
