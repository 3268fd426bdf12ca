"""What users read of captured layers, and the line by which a checkpoint knows its optimizer."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from thor.capture.targets import LeftOut

logger = logging.getLogger("thor")


@dataclass(frozen=True)
class LayerRecord:
    """What ``THOR.layers`` says of one captured layer."""

    name: str
    kind: str
    a_dim: int
    g_dim: int
    blocks: tuple[tuple[int, int], tuple[int, int]]  # (count, size) of A and of G
    status: str
    refreshes: int
    kept: int
    bytes: int


def report_unused(names: Iterable[str], told: set[str], step: int) -> None:
    """Say once of each layer that the network has never called it: its factors are unknown, its inverses stay I."""
    for name in set(names) - told:
        told.add(name)
        logger.warning("step %d: the network has not called layer %s so far (its weights may be used elsewhere); "
                       "it takes the plain gradient", step, name)  # fmt: skip


def log_layers(records: list[LayerRecord], left_out: list[LeftOut]) -> None:
    """One line for each captured layer, and one for all that was not captured."""
    for record in records:
        (a_count, a_size), (g_count, g_size) = record.blocks
        logger.info(
            "captured %s (%s): A %d in %d x %d, G %d in %d x %d, %.1f KiB", record.name, record.kind, record.a_dim,
            a_count, a_size, record.g_dim, g_count, g_size, record.bytes / 1024,
        )  # fmt: skip
    if left_out:
        logger.info("not captured, plain gradient: %s", "; ".join(f"{x.name}: {x.reason}" for x in left_out))


def describe_optimizer(optimizer: Any, options: Any, method: str) -> str:
    """``repr`` of a THOR: its settings, and a line for each layer."""
    o, ranks = options, optimizer.ranks
    shared = "" if ranks is None else f", rank {ranks.rank} of {ranks.grid.ranks} in {ranks.grid.columns} columns"
    lines = [
        f"THOR(step={optimizer.step}, inner={type(optimizer.inner).__name__}, {o.plan.describe()}, "
        f"refresh={o.refresh},",
        f"     interval={o.interval.value}, factor_decay={o.factor_decay}, inverse={method!r}, "
        f"clip={o.clip}, {optimizer.memory()['total'] / 2**20:.1f} MiB{shared})",
    ]
    for r in optimizer.layers:
        (a_count, a_size), (g_count, g_size) = r.blocks
        lines.append(
            f"  {r.name}: {r.kind}, A {r.a_dim} ({a_count}x{a_size}), G {r.g_dim} ({g_count}x{g_size}), "
            f"{r.status}, {r.refreshes} refreshes"
        )
    return "\n".join(lines)
