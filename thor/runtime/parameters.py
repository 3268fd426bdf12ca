"""State as named Parameters, which checkpoints carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

PREFIX = "thor."
LARGEST = 2**31 - 1  # of an int32: a step that never comes


def parameter(name: str, value: np.ndarray) -> Parameter:
    """A named state Parameter. Never trainable by an optimizer, but differentiable where a port needs it."""
    return Parameter(Tensor(np.ascontiguousarray(value)), name=PREFIX + name, requires_grad=True)


def float_parameter(name: str, value: float | list[float] | np.ndarray) -> Parameter:
    """A small host-side float32 state Parameter."""
    return parameter(name, np.atleast_1d(np.asarray(value, np.float32)))


def int_parameter(name: str, value: int | np.ndarray) -> Parameter:
    """A small host-side int32 state Parameter."""
    return Parameter(Tensor(np.atleast_1d(np.asarray(value, np.int32)), ms.int32), PREFIX + name, requires_grad=False)


def read(state: Parameter) -> int:
    """A host-side state of one number."""
    return int(state.item())  # a twentieth of asnumpy's time


def write(state: Parameter, value: Any) -> None:
    """Set a host-side state; no compiled graph reads it, so its storage may be replaced."""
    if isinstance(value, int):
        value = min(value, LARGEST)
    numbers = np.float32 if state.dtype == ms.float32 else np.int32  # ms.dtype_to_nptype prints a warning at each call
    state.set_data(Tensor(np.full(state.shape, value, numbers)))


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


def addresses(parameters: Iterable[Parameter]) -> list[int]:
    """Where Parameters' values lie."""
    return [parameter.data_ptr() for parameter in parameters]
