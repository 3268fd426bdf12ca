"""State kept in named Parameters, which checkpoints contain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from first_order.compiled import clear_failed_call
from first_order.mindspore_versions import ignores_assign

PREFIX = "thor."
LARGEST = 2**31 - 1  # largest int32: stands for a step that never comes


def parameter(name: str, value: np.ndarray) -> Parameter:
    """A named state Parameter. No optimizer trains it; it is differentiable, as a port needs it to be."""
    return Parameter(Tensor(np.ascontiguousarray(value)), name=PREFIX + name, requires_grad=True)


def float_parameter(name: str, value: float | list[float] | np.ndarray) -> Parameter:
    """A small host-side float32 state Parameter."""
    return parameter(name, np.atleast_1d(np.asarray(value, np.float32)))


def int_parameter(name: str, value: int | np.ndarray) -> Parameter:
    """A small host-side int32 state Parameter."""
    return Parameter(Tensor(np.atleast_1d(np.asarray(value, np.int32)), ms.int32), PREFIX + name, requires_grad=False)


def read(state: Parameter) -> int:
    """The value of a host-side state of one number."""
    return int(state.item())  # far faster than asnumpy


def write(state: Parameter, value: Any) -> None:
    """Set a host-side state. No compiled graph reads it, therefore its storage may be replaced."""
    if isinstance(value, int):
        value = min(value, LARGEST)
    numbers = np.float32 if state.dtype == ms.float32 else np.int32  # ms.dtype_to_nptype warns at each call
    state.set_data(Tensor(np.full(state.shape, value, numbers)))


def give_own_storage(weights: Iterable[Parameter]) -> None:
    """Copy the value of each Parameter that is a view of another Tensor.

    ``set_data`` with a reshaped Tensor makes such a Parameter. Operator by operator MindSpore's Assign, with which
    optimizers move weights, refuses to write into it, or does not write.
    """
    for weight in weights:
        try:
            ops.assign(weight, weight.value() + 0)
            assigned = not ignores_assign(weight)
        except RuntimeError:
            clear_failed_call()
            assigned = False
        if not assigned:
            weight.set_data(Tensor(weight.asnumpy().copy(), weight.dtype))


def check_before_loading(target: Parameter, check: Callable[[Tensor], None]) -> None:
    """Let ``check`` see every value before it is loaded into a Parameter, and refuse it by raising.

    MindSpore has no hook for this: ``load_param_into_net`` and users call the Parameter's ``set_data``, which is
    therefore replaced on this one object.
    """
    load = target.set_data

    def checked(data: Tensor, *options: Any) -> Parameter:
        check(data)
        return load(data, *options)

    object.__setattr__(target, "set_data", checked)
