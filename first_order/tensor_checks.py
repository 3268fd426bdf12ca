"""Checks of arguments that are Tensors or Parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from first_order.checks import number

FLOATS = (ms.float16, ms.float32, ms.float64)


def is_supplier(value: Any) -> bool:
    """Whether a hyper-parameter is given as a Python function without arguments."""
    return callable(value) and not isinstance(value, nn.Cell | Tensor)


def as_tensor(name: str, value: Any, dtypes: tuple[Any, ...]) -> Tensor:
    """A NumPy array or Tensor as a Tensor; raise unless its type is one of ``dtypes``."""
    if isinstance(value, np.ndarray | np.generic):
        value = Tensor(np.ascontiguousarray(value).reshape(np.shape(value)))
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a Tensor or a NumPy array, but got {value!r} of type {type(value).__name__}")
    if value.dtype not in dtypes:
        allowed = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name} must be of type {allowed}, but got {value.dtype}")
    return value


def same_kind(**tensors: Tensor) -> None:
    """Raise unless all tensors have the shape and type of the first."""
    (first, model), *others = tensors.items()
    for name, tensor in others:
        if tuple(tensor.shape) != tuple(model.shape):
            raise ValueError(
                f"{name} must have the shape of {first}, {tuple(model.shape)}, but got {tuple(tensor.shape)}"
            )
        if tensor.dtype != model.dtype:
            raise TypeError(f"{name} must be of {first}'s type, {model.dtype}, but got {tensor.dtype}")


def scalar_on_host(name: str, value: Any) -> float:
    """A number, a NumPy array or a Tensor of one element as a float; raise for anything else."""
    if isinstance(value, Tensor | np.ndarray):
        array = value.asnumpy() if isinstance(value, Tensor) else value
        if array.size != 1:
            raise ValueError(f"{name} must be one number, but got shape {array.shape}")
        value = array.reshape(()).item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number or a Tensor of one, but got {value!r} of type {type(value).__name__}")
    return float(value)


def hyper(name: str, value: Any, low: float, high: float = math.inf, *, open_high: bool = False) -> Any:
    """Check a hyper-parameter of an update function, also if it is a Tensor, and return it unchanged."""
    number(name, scalar_on_host(name, value), low, high, open_high=open_high)
    return value


def all_parameters(name: str, *values: Any) -> None:
    """Raise unless each value is a Parameter, as ``in_place=True`` requires."""
    for value in values:
        if not isinstance(value, Parameter):
            raise TypeError(f"{name} must be MindSpore Parameters where in_place=True, but got {type(value).__name__}")


def supplier_of(name: str, value: Any, check: Callable[[str, Any], float]) -> Callable[[], float] | None:
    """A function that calls the hyper-parameter's function and checks the result; None if ``value`` is no function."""
    if not is_supplier(value):
        return None

    def read() -> float:
        return check(name, value())

    return read
