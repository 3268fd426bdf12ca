"""Trials of a quasi-random search, the same for everybody who runs it (pure)."""

from __future__ import annotations

import math
from typing import Any

from scipy.stats import qmc

from scripts.convergence.tasks import Contender, Task

SHARE = "epochs_share"  # of the full schedule, for optimizers that need less of it


def trials(task: Task, contender: Contender, count: int) -> list[dict[str, Any]]:
    """The first trial is the contender's start; the others are points of a Sobol sequence over its space.

    Such points are spread evenly however few they are, where a random draw may leave the better half of a range out;
    and a larger budget begins with the trials of a smaller one. The sequence's corner and centre are left out: the
    start stands for them.
    """
    found = [dict(contender.start)]
    if contender.space:
        sequence = qmc.Sobol(len(contender.space), scramble=False).fast_forward(2)
        for point in sequence.random(count - 1) if count > 1 else ():
            pairs = zip(contender.space.items(), point.tolist(), strict=True)
            found.append({path: _at(values, share) for (path, values), share in pairs})
    return found


def _at(values: Any, share: float) -> Any:
    """What lies that share of the way through a range, on a logarithmic scale, or through a list."""
    if isinstance(values, tuple):
        low, high = map(math.log, values)
        return float(f"{math.exp(low + share * (high - low)):.3g}")
    return values[int(share * len(values))]


def settings(task: Task, contender: Contender, values: dict[str, Any], seed: int, epochs: int) -> dict[str, Any]:
    """The configuration of a run, nested as train.py reads it; ``epochs`` is the full schedule."""
    share = values.get(SHARE, 1.0)
    flat = {**task.settings, **contender.fixed, **{k: v for k, v in values.items() if k != SHARE}}
    flat |= {"optimizer": contender.optimizer, "seed": seed, "epochs": max(1, round(share * epochs)), "device": "CPU"}
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *blocks, key = path.split(".")
        place = nested
        for block in blocks:
            place = place.setdefault(block, {})
        place[key] = value
    return nested
