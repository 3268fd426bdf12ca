"""Saving and loading an optimizer's state, also over ranks, with a guard against another optimizer's checkpoint."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from thor.curvature.layer import Layer
from thor.distributed.ranks import Ranks
from thor.factors.blocks import BlockPlan, numbers_in
from thor.runtime.parameters import check_before_loading

_PLAN_BYTES = 256
_LAYERS_WITH_CHECKSUM = 512  # four bytes each; a difference in a later layer is noticed, but the layer is not named


def gathered_state(
    optimizer: nn.Cell, layers: Sequence[Layer], column_of: Sequence[int], ranks: Ranks | None
) -> list[dict[str, Any]]:
    """``[{"name", "data"}]`` of copies of every Parameter, including the inverses that other ranks hold.

    ``column_of`` gives for each layer the column of ranks that holds its inverses. All ranks must call it.
    """
    values = {parameter.name: Tensor(parameter.asnumpy().copy()) for parameter in optimizer.get_parameters()}
    if ranks is not None and ranks.row is not None:
        values |= _caches_of_row(layers, column_of, ranks)
    return [{"name": name, "data": value} for name, value in values.items()]


def _caches_of_row(layers: Sequence[Layer], column_of: Sequence[int], ranks: Ranks) -> dict[str, Tensor]:
    """The cached inverses of all layers, by Parameter name, gathered from this rank's row.

    A row of ranks has the inverses of each layer exactly once, on the rank of the layer's column.
    """
    columns = range(ranks.grid.columns)
    parts = [
        [pair for layer, at in zip(layers, column_of, strict=True) if at == column for pair in layer.held_by_few]
        for column in columns
    ]
    lengths = [numbers_in(shape for _, shape in part) for part in parts]
    pieces = [cache.asnumpy().reshape(-1) for cache, _ in parts[ranks.own_column]]
    own = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    caches: dict[str, Tensor] = {}
    for part, flat in zip(parts, ranks.gathered_in_row(own, lengths), strict=True):
        first = 0
        for cache, shape in part:
            last = first + int(np.prod(shape))
            caches[cache.name] = Tensor(flat[first:last].reshape(shape).copy())
            first = last
    return caches


def load_state(optimizer: nn.Cell, plan: Parameter, layers: Sequence[Layer], parameters: dict[str, Parameter]) -> None:
    """Load a copy of a complete state, except the cached inverses of layers that this rank does not hold.

    ``load_param_into_net`` by itself lets both Parameters share storage, so that training would change what was given.

    Raises TypeError for what is no dict, and ValueError for another optimizer's state or if a Parameter is missing.
    """
    if not isinstance(parameters, dict):
        raise TypeError(
            f"parameters must be a dict, as ms.load_checkpoint(path) returns it, but got a {type(parameters).__name__}"
        )
    elsewhere = {cache.name for layer in layers if not layer.held for cache, _ in layer.held_by_few}
    own = {name: value for name, value in parameters.items() if name not in elsewhere}
    if plan.name in own:
        plan.set_data(own[plan.name])  # raises ValueError for another optimizer's state
    lost = [p.name for p in optimizer.get_parameters() if p.name not in own and p.name not in elsewhere]
    if lost:
        raise ValueError(f"the checkpoint lacks {len(lost)} of the optimizer's Parameters, {lost[0]} among them")
    shapes = {p.name: tuple(p.shape) for p in optimizer.get_parameters() if p.name in own}
    other = next((name for name, shape in shapes.items() if tuple(own[name].shape) != shape), None)
    if other is not None:
        raise ValueError(
            f"the checkpoint has {other} of the shape {tuple(own[other].shape)}, but it must be {shapes[other]}: where "
            f"ranks share the layers, ms.save_checkpoint(optimizer, ...) saves those of one rank; save "
            f"optimizer.state()"
        )
    copies = {name: Parameter(Tensor(value.asnumpy().copy(), value.dtype), name=name) for name, value in own.items()}
    ms.load_param_into_net(optimizer, copies)


def describe_plan(plan: BlockPlan, layers: list[Layer]) -> str:
    """The plan and a hash of all layers as one short line of JSON, which a checkpoint contains."""
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
    """A Parameter with the line of :func:`describe_plan` and a checksum of each layer, which must be loaded unchanged.

    Loading any other value raises ValueError. The Parameter is the first of an optimizer's, so that loading another
    optimizer's checkpoint changes nothing. While ``undecided()`` is true, loading raises ValueError too, because the
    first step would choose a plan and discard the loaded state.
    """
    text, prints = describe_plan(plan, layers), [layer.fingerprint() for layer in layers]
    sums = np.zeros(_LAYERS_WITH_CHECKSUM, "<u4")
    sums[: len(prints)] = [zlib.crc32(each.encode()) for each in prints[:_LAYERS_WITH_CHECKSUM]]
    own = np.frombuffer(text.encode().ljust(_PLAN_BYTES) + sums.tobytes(), np.uint8)
    parameter = Parameter(Tensor(own.copy()), name="thor.plan", requires_grad=False)

    def check(data: Tensor) -> None:
        stored = data.asnumpy().tobytes()
        line = stored[:_PLAN_BYTES].decode(errors="replace").rstrip()
        if undecided():
            raise ValueError(
                "block_size='auto' has not chosen a block size yet, so no checkpoint can be loaded: take one step "
                f"first, or give the plan that the checkpoint was made with ({line})"
            )
        if stored != own.tobytes():
            theirs = np.frombuffer(stored[_PLAN_BYTES:], "<u4")
            other = next((layer for layer, one, two in zip(layers, sums, theirs, strict=False) if one != two), None)
            raise ValueError(f"the checkpoint belongs to another optimizer: {_plan_differences(line, text, other)}")

    check_before_loading(parameter, check)
    return parameter


def _plan_differences(stored: str, own: str, other: Layer | None) -> str:
    """The differences between a checkpoint's line and this optimizer's, in words.

    ``other`` is the first layer that differs, if it is known.
    """
    try:
        theirs, ours = json.loads(stored), json.loads(own)
    except json.JSONDecodeError:
        return "its plan cannot be read"
    differences = [
        f"{k} {theirs.get(k)!r} there, {ours[k]!r} here" for k in ours if theirs.get(k) != ours[k] and k != "hash"
    ]
    if differences:
        return ", ".join(differences)
    if other is None:
        return "its layers differ in name, size or cut"
    a, g = (f"{c.count} x {c.size} blocks for {c.dim} rows, {c.split}" for c in (other.a.cut, other.g.cut))
    what = f"{other.name} ({other.kind}, {other.kept} of A {a}; of G {g})"
    return f"the first layer that differs in name, size or cut is here {what}"
