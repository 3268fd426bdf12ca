"""Records and log lines about captured layers, and the ``repr`` of an optimizer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from thor.capture.targets import LeftOut
from thor.distributed.ranks import Ranks
from thor.settings.options import Options

logger = logging.getLogger("thor")


@dataclass(frozen=True)
class LayerRecord:
    """One captured layer, as in ``THOR.layers``.

    Attributes:
        name: name of the layer in the network.
        kind: kind of the layer, such as "dense" or "conv".
        a_dim: dimension of A.
        g_dim: dimension of G.
        blocks: (count, size) of the diagonal blocks of A, then of G.
        status: "active" or "stopped".
        refreshes: number of adopted refreshes.
        kept: number of candidate refreshes at which the layer kept its inverses.
        bytes: bytes of the layer's curvature state.
        weight_sharing: how the layer's rows belong to the loss's terms.
    """

    name: str
    kind: str
    a_dim: int
    g_dim: int
    blocks: tuple[tuple[int, int], tuple[int, int]]  # (count, size) of A and of G
    status: str
    refreshes: int
    kept: int
    bytes: int
    weight_sharing: str


def log_layers(records: list[LayerRecord], left_out: list[LeftOut]) -> None:
    """Log one line for each captured layer, and one line for all layers left out."""
    for record in records:
        (a_count, a_size), (g_count, g_size) = record.blocks
        logger.info(
            "captured %s (%s, %s): A %d in %d x %d, G %d in %d x %d, %.1f KiB", record.name, record.kind,
            record.weight_sharing, record.a_dim, a_count, a_size, record.g_dim, g_count, g_size, record.bytes / 1024,
        )  # fmt: skip
    if left_out:
        logger.info("not captured: %s", "; ".join(f"{x.name}: {x.reason}" for x in left_out))


def describe_optimizer(
    step: int, inner: str, options: Options, method: str, layers: Sequence[LayerRecord], ranks: Ranks | None
) -> str:
    """The ``repr`` of a THOR: its settings, and a line for each layer; ``inner`` names the inner optimizer's class."""
    o, total = options, sum(record.bytes for record in layers)
    shared = "" if ranks is None else f", rank {ranks.rank} of {ranks.grid.ranks} in {ranks.grid.columns} columns"
    how = f"inner={inner}, inverse={method!r}, clip={o.clip}"
    if o.adam is not None:
        how = f"precondition={o.kind!r}, beta1={o.adam.beta1}, beta2={o.adam.beta2}, "
        how += f"epsilon={o.adam.epsilon}, rate_factor={o.adam.rate_factor:g}"
    lines = [
        f"THOR(step={step}, {how}, {o.plan.describe()},",
        f"     refresh={o.refresh}, interval={o.interval.value}, factor_decay={o.factor_decay}, "
        f"{total / 2**20:.1f} MiB{shared})",
    ]
    for r in layers:
        (a_count, a_size), (g_count, g_size) = r.blocks
        lines.append(
            f"  {r.name}: {r.kind}, A {r.a_dim} ({a_count}x{a_size}), G {r.g_dim} ({g_count}x{g_size}), "
            f"{r.status}, {r.refreshes} refreshes"
        )
    return "\n".join(lines)
