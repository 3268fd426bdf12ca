"""Trials of a random search, the same for everybody who runs it (pure)."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from scripts.convergence.tasks import Contender, Task

SHARE = "epochs_share"  # of the full schedule, for optimizers that need less of it


def trials(task: Task, contender: Contender, count: int) -> list[dict[str, Any]]:
    """The first trial is the contender's start; the others are drawn, each from its own number only.

    So a larger budget begins with the trials of a smaller one.
    """
    found = [dict(contender.start)]
    for index in range(1, count):
        rng = np.random.default_rng([zlib.crc32(f"{task.name}/{contender.name}".encode()), index])
        found.append({path: _drawn(values, rng) for path, values in contender.space.items()})
    return found[:count]


def _drawn(values: Any, rng: np.random.Generator) -> Any:
    if isinstance(values, tuple):
        low, high = map(math.log, values)
        return float(f"{math.exp(rng.uniform(low, high)):.3g}")
    return values[int(rng.integers(len(values)))]


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
