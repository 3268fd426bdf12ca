"""Where a step went bad: the first layer, in forward order, whose numbers are not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn


def is_finite(value: Any) -> bool:
    """Whether every number in a tensor, or in nested tuples of them, is finite."""
    if isinstance(value, Tensor):
        array = value.asnumpy()
        return bool(np.isfinite(array).all()) if np.issubdtype(array.dtype, np.floating) else True
    if isinstance(value, (tuple, list)):
        return all(is_finite(item) for item in value)
    return True


def first_bad_layer(
    net: nn.Cell, loss_fn: Callable[..., Tensor] | None, weights: Iterable[Parameter], inputs: tuple[Any, ...]
) -> str:
    """A sentence that names what is not finite first: an input, a weight, a layer's output, or a gradient."""
    for index, value in enumerate(inputs):
        if not is_finite(value):
            return f"input {index} of the step is not finite"
    for weight in weights:
        if not is_finite(weight):
            return f"weight {weight.name} is not finite"
    mode = ms.get_context("mode")
    handles: list[Any] = []
    bad: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(cell, cell_inputs, output):
            if not bad and not is_finite(output):
                bad.append(f"layer {name} ({type(cell).__name__}) gives a non-finite output for finite inputs")

        return hook

    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        for name, cell in net.cells_and_names():
            if name and not list(cell.cells()):
                handles.append(cell.register_forward_hook(watch(name)))
        output = net(*inputs[:-1]) if loss_fn is not None else net(*inputs)
        if not bad and loss_fn is not None and not is_finite(loss_fn(output, inputs[-1])):
            return "every layer's output is finite, the loss is not"
    finally:
        for handle in handles:
            handle.remove()
        ms.set_context(mode=mode)
    return bad[0] if bad else "the loss is finite, gradients are not: the backward pass overflows"
