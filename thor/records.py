"""What users read of captured layers, and the line by which a checkpoint knows its optimizer."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from thor.capture.targets import LeftOut
from thor.curvature.layer import Layer
from thor.factors.blocks import BlockPlan

logger = logging.getLogger("thor")

_PLAN_BYTES = 256
_LAYERS_TOLD_APART = 512  # four bytes each; of more layers a checkpoint says only that they differ


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


def describe_plan(plan: BlockPlan, layers: list[Layer]) -> str:
    """The plan and all layers in one short JSON line that travels in the checkpoint."""
    fingerprints = "|".join(layer.fingerprint() for layer in layers)
    return json.dumps(
        {
            "block_size": plan.block_size,
            "split": plan.split,
            "rank": plan.rank,
            "order": plan.order,
            "exceptions": len(plan.layers),
            "layers": len(layers),
            "first": layers[0].name[:20],
            "hash": zlib.crc32(fingerprints.encode()),
        }
    )


def plan_parameter(plan: BlockPlan, layers: list[Layer], undecided: Callable[[], bool]) -> Parameter:
    """The line of :func:`describe_plan` and a checksum of each layer: refuses to be loaded with other ones.

    It stands first among an optimizer's Parameters, so that another optimizer's checkpoint changes nothing. While
    ``undecided()``, nothing can be loaded: the first step would begin anew with the plan it chooses.
    """
    text, prints = describe_plan(plan, layers), [layer.fingerprint() for layer in layers]
    sums = np.zeros(_LAYERS_TOLD_APART, "<u4")
    known = prints[:_LAYERS_TOLD_APART]
    sums[: len(known)] = [zlib.crc32(each.encode()) for each in known]
    own = np.frombuffer(text.encode().ljust(_PLAN_BYTES) + sums.tobytes(), np.uint8)
    parameter = Parameter(Tensor(own.copy()), name="thor.plan", requires_grad=False)
    write = parameter.set_data

    def checked(data: Tensor, *options: Any) -> Parameter:
        stored = data.asnumpy().tobytes()
        line = stored[:_PLAN_BYTES].decode(errors="replace").rstrip()
        if undecided():
            raise ValueError(
                "block_size='auto' has not chosen a block size yet, so no checkpoint can be loaded: take one step "
                f"first, or give the plan that the checkpoint was made with ({line})"
            )
        if stored != own.tobytes():
            theirs = np.frombuffer(stored[_PLAN_BYTES:], "<u4")
            other = next((mine for mine, one, two in zip(known, sums, theirs, strict=False) if one != two), None)
            raise ValueError(f"the checkpoint belongs to another optimizer: {_plan_differences(line, text, other)}")
        return write(data, *options)

    object.__setattr__(parameter, "set_data", checked)
    return parameter


def _plan_differences(stored: str, own: str, other: str | None) -> str:
    """What differs between a checkpoint's line and this optimizer's, in words; ``other`` is a layer not like theirs."""
    try:
        theirs, ours = json.loads(stored), json.loads(own)
    except json.JSONDecodeError:
        return "its plan cannot be read"
    found = [f"{k} {theirs.get(k)!r} there, {ours[k]!r} here" for k in ours if theirs.get(k) != ours[k] and k != "hash"]
    if found:
        return ", ".join(found)
    if other is None:
        return "its layers differ in name, size or cut"
    return f"the first layer that differs in name, size or cut is here {other}"


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
