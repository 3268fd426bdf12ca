"""The state of an optimizer whose inverses are spread over ranks: brought together to save, divided to load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from thor.curvature.layer import Layer
from thor.distributed.ranks import Ranks
from thor.factors.blocks import numbers_in


def gathered_state(
    optimizer: nn.Cell, layers: Sequence[Layer], column_of: Sequence[int], ranks: Ranks | None
) -> list[dict[str, Any]]:
    """``[{"name", "data"}]`` of every Parameter, inverses that other ranks hold among them."""
    values = {parameter.name: Tensor(parameter.asnumpy()) for parameter in optimizer.get_parameters()}
    if ranks is not None and ranks.row is not None:
        values |= _caches_of_row(layers, column_of, ranks)
    return [{"name": name, "data": value} for name, value in values.items()]


def _caches_of_row(layers: Sequence[Layer], column_of: Sequence[int], ranks: Ranks) -> dict[str, Tensor]:
    """The caches of all layers: a row of ranks has each layer's exactly once, on the rank of its column."""
    columns = range(ranks.grid.columns)
    parts = [
        [factor for layer, own in zip(layers, column_of, strict=True) if own == column for factor in (layer.a, layer.g)]
        for column in columns
    ]
    lengths = [sum(numbers_in(factor.cache_shapes) for factor in part) for part in parts]
    mine = [cache.asnumpy().reshape(-1) for factor in parts[ranks.own_column] for cache in factor.cache]
    own = np.concatenate(mine) if mine else np.zeros(0, np.float32)
    found: dict[str, Tensor] = {}
    for part, flat in zip(parts, ranks.gathered_in_row(own, lengths), strict=True):
        first = 0
        for factor in part:
            for cache, shape in zip(factor.cache, factor.cache_shapes, strict=True):
                last = first + int(np.prod(shape))
                found[cache.name] = Tensor(flat[first:last].reshape(shape).copy())
                first = last
    return found


def load_state(optimizer: nn.Cell, layers: Sequence[Layer], parameters: dict[str, Parameter]) -> None:
    """Take over a whole state; caches of layers that this rank does not hold are left out."""
    elsewhere = {cache.name for y in layers if not y.held for factor in (y.a, y.g) for cache in factor.cache}
    own = {name: value for name, value in parameters.items() if name not in elsewhere}
    plan = next(optimizer.get_parameters())
    if plan.name in own:
        plan.set_data(own[plan.name])  # which refuses another optimizer's
    lost = [p.name for p in optimizer.get_parameters() if p.name not in own and p.name not in elsewhere]
    if lost:
        raise ValueError(f"the checkpoint lacks {len(lost)} of the optimizer's Parameters, {lost[0]} among them")
    ms.load_param_into_net(optimizer, own)
