"""Diagnosis of a step that was not finite, or that MindSpore cannot compile or run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from first_order.compiled import clear_failed_call
from thor.runtime.modes import in_mode
from thor.step.forward import Forward


def works(function: Callable[..., Any], *args: Any) -> bool:
    """Whether a call raises nothing."""
    try:
        function(*args)
    except Exception:  # whatever MindSpore raises
        clear_failed_call()
        return False
    return True


def no_factors(error: Exception) -> str:
    """The error message where a step works without factors, but not while they are gathered."""
    return (
        f"this loss and its gradients can be computed, but not while factors are gathered. mindspore.vmap, jacrev and "
        f"jacfwd around a captured layer are known to do this: take mindspore.grad of one output at a time in their "
        f"place, or leave the layers out (skip=). MindSpore says: {str(error).strip().splitlines()[0]}"
    )


def is_finite(value: Any) -> bool:
    """True if every number in a tensor, or in nested tuples of tensors, is finite."""
    if isinstance(value, Tensor):
        array = value.asnumpy()
        return bool(np.isfinite(array).all()) if np.issubdtype(array.dtype, np.floating) else True
    if isinstance(value, (tuple, list)):
        return all(is_finite(item) for item in value)
    return True


def first_bad_layer(forward: Forward, weights: Iterable[Parameter], inputs: tuple[Any, ...]) -> str | None:
    """A sentence that names the first input, weight, layer output or gradient that is not finite; None without one."""
    net = forward.net
    place = {id(each): index for index, each in enumerate(net.get_parameters())}
    weights = sorted(weights, key=lambda each: place.get(id(each), len(place)))  # parameter groups have another order
    for index, value in enumerate(inputs):
        if not is_finite(value):
            return f"input {index} of the step is not finite"
    for weight in weights:
        if not is_finite(weight):
            return f"weight {weight.name} is not finite"
    handles: list[Any] = []
    bad: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(cell, cell_inputs, output):
            if not bad and not is_finite(output):
                bad.append(f"layer {name} ({type(cell).__name__}) gives a non-finite output for finite inputs")

        return hook

    try:
        with in_mode(ms.PYNATIVE_MODE):
            for name, cell in net.cells_and_names():
                if name and not list(cell.cells()):
                    handles.append(cell.register_forward_hook(watch(name)))
            loss = forward.loss(*inputs)
            if bad:
                return bad[0]
            if forward.loss_fn is not None and not is_finite(loss):
                return "every layer's output is finite, the loss is not"
            return _first_bad_gradient(forward, weights, inputs)
    finally:
        for handle in handles:
            handle.remove()


def _first_bad_gradient(forward: Forward, weights: list[Parameter], inputs: tuple[Any, ...]) -> str | None:
    """A sentence that names the last weight in the network's order with a non-finite gradient, the first in backward.

    None if all gradients are finite.
    """
    gradients = ms.grad(forward.loss, None, weights)(*inputs)
    bad = [w.name for w, gradient in zip(weights, gradients, strict=True) if not is_finite(gradient)]
    if not bad:
        return None
    return f"the loss is finite; on the way back the gradient of weight {bad[-1]} is the first that is not"


def likely_cause(scaled: bool, accumulated: bool, ranks: bool, damped: bool) -> str:
    """The likely cause of a non-finite step if its last inputs give a finite loss and finite gradients."""
    if accumulated or ranks:
        others = " and ".join(["other micro-batches"] * accumulated + ["other ranks"] * ranks)
        return f"what this rank's last batch gives is finite, so that it comes from {others}"
    if scaled:
        return "loss and gradients are finite without the loss scale, which makes them overflow: start with a lower one"
    if damped:
        return "loss and gradients are finite, the directions that stale inverses make of them are not"
    return "loss and gradients are finite, but so large that a sum over them is not"


def stop_message(step: int, in_a_row: int, where: str, damped: bool) -> str:
    """The error message that tells why training stopped, and what to do; ``damped`` if the optimizer has a damping."""
    cures = ["lower the learning rate", *(["raise damping"] if damped else []), "or check the data"]
    return (
        f"{in_a_row} steps in a row were not finite, all skipped, training stopped at step {step}: "
        f"{where}. {', '.join(cures).capitalize()}"
    )
