"""The setting ``weight_sharing``: how the rows of each layer belong to the loss's terms (thor/factors/formulas.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mindspore import nn

from thor.capture.layer_classes import is_embedding
from thor.factors.statistics import EXPAND, POOLED, WEIGHT_SHARING


def sharing_of(weight_sharing: Any, net: nn.Cell) -> Callable[[str], str]:
    """The weight sharing of a layer as a function of its name.

    Args:
        weight_sharing: a name for all layers; or a mapping from regular expressions on layers' names to names, of which
            the first that matches holds; None, and where none matches, for the default: "expand" in a network with an
            embedding, whose loss usually has a term for every token, else "pooled".
        net: the network.
    """
    default = EXPAND if any(is_embedding(cell) for _, cell in net.cells_and_names()) else POOLED
    if weight_sharing is None:
        return lambda name: default
    if not isinstance(weight_sharing, Mapping):
        only = _checked(weight_sharing)
        return lambda name: only
    try:
        rules = [(re.compile(pattern), _checked(value)) for pattern, value in weight_sharing.items()]
    except (re.error, TypeError) as error:
        raise ValueError(f"weight_sharing must map regular expressions on layers' names, but: {error}") from error
    return lambda name: next((value for pattern, value in rules if pattern.search(name)), default)


def _checked(value: Any) -> str:
    if value not in WEIGHT_SHARING:
        raise ValueError(
            f"weight_sharing must be one of {', '.join(WEIGHT_SHARING)}, a mapping to these, or None, but got {value!r}"
        )
    return str(value)
