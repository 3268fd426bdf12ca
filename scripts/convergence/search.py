"""Trials of a deterministic quasi-random search."""

from __future__ import annotations

import math
from typing import Any

from scipy.stats import qmc

from scripts.convergence.tasks import Contender, Task

SHARE = "epochs_share"  # setting: share of the full schedule, for optimizers that need fewer epochs


def trials(task: Task, contender: Contender, count: int) -> list[dict[str, Any]]:
    """The settings of each trial: first the contender's start, then points of a Sobol sequence over its space.

    Even a few such points are spread evenly, where random points may miss half of a range. A larger `count` begins with
    the trials of a smaller one. The sequence's first two points, corner and centre, are left out: the start replaces
    them.
    """
    found = [dict(contender.start)]
    if contender.space:
        sequence = qmc.Sobol(len(contender.space), scramble=False).fast_forward(2)
        for point in sequence.random(count - 1) if count > 1 else ():
            pairs = zip(contender.space.items(), point.tolist(), strict=True)
            found.append({path: _at(values, share) for (path, values), share in pairs})
    return found


def _at(values: Any, share: float) -> Any:
    """The value at a position `share` (0 to 1) in a range on a logarithmic scale, or in a list."""
    if isinstance(values, tuple):
        low, high = map(math.log, values)
        return float(f"{math.exp(low + share * (high - low)):.3g}")
    return values[int(share * len(values))]


def settings(task: Task, contender: Contender, values: dict[str, Any], seed: int, epochs: int) -> dict[str, Any]:
    """The configuration of a run, nested as in a file for train.py; ``epochs`` is the full schedule."""
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
