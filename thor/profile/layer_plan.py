"""A block size for every factor: the smallest that keeps it, within a time budget for the refresh (pure)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from thor.factors.blocks import BlockPlan, even_cut
from thor.profile.profile_file import FactorMeasure, Profile


@dataclass(frozen=True)
class LayerPlan:
    """Block sizes by layer (A, G), the refresh's modelled seconds, and the factors above the loss threshold."""

    sizes: dict[str, tuple[int, int]]
    seconds: float
    above: tuple[str, ...]

    def plan(self, split: str = "block+mean", rank: int = 16, order: str = "channel") -> BlockPlan:
        """For ``THOR(block_size=...)``."""
        layers = {f"^{re.escape(name)}$": sizes for name, sizes in self.sizes.items()}
        largest = max(max(sizes) for sizes in self.sizes.values())
        return BlockPlan(block_size=largest, split=split, rank=rank, order=order, layers=layers)


def block_seconds(profile: Profile, size: int) -> float:
    """Modelled seconds of one block of ``size`` in a batch: measured ones, joined by straight lines in log-log."""
    dims = np.log([float(dim) for dim in profile.dims])
    times = np.log([profile.blocks[dim].median for dim in profile.dims])
    beyond = size / profile.dims[-1]
    extra = 3 * math.log(beyond) if beyond > 1 else 0.0  # an inverse is cubic beyond the last candidate
    return float(np.exp(np.interp(math.log(size), dims, times) + extra))


def factor_seconds(profile: Profile, factor: FactorMeasure, block_size: int) -> float:
    """Modelled seconds of inverting a factor in blocks of at most ``block_size``."""
    size, count = even_cut(factor.dim, block_size)
    return factor.copies * count * block_seconds(profile, size)


def choose_per_layer(profile: Profile, budget: float = math.inf, order: str = "channel") -> LayerPlan:
    """Each factor's smallest candidate with a loss below the threshold; a factor that none keeps stays whole.

    While the modelled refresh exceeds ``budget`` seconds, one factor moves to the candidate that gives up the least
    loss per second saved: mostly a smaller one, but a larger one where many small blocks cost more than a few large.
    If nothing saves any more and it still exceeds, a ValueError says so.
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
