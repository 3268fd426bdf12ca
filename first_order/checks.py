"""Checks of arguments. Every error message has the name, the value and what is allowed, and a hint if it helps."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

FLOATS = (ms.float16, ms.float32, ms.float64)


def number(
    name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> float:  # fmt: skip
    """``value`` as a float; raise unless it is finite and in [low, high], without the ends that are open."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, but got {value!r} of type {type(value).__name__}")
    size = float(value)
    inside = (low < size if open_low else low <= size) and (size < high if open_high else size <= high)
    if not (math.isfinite(size) and inside):
        lower = "" if low == -math.inf else f" and {'greater than' if open_low else 'at least'} {low:g}"
        upper = "" if high == math.inf else f" and {'less than' if open_high else 'at most'} {high:g}"
        raise ValueError(f"{name} must be finite{lower}{upper}, but got {value}")
    return size


def flag(name: str, value: Any) -> bool:
    """``value``; raise unless it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, but got {value!r} of type {type(value).__name__}")
    return value


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


def hyper(name: str, value: Any, low: float, high: float = math.inf) -> Any:
    """Check a hyper-parameter of an update function, also if it is a Tensor, and return it unchanged."""
    number(name, scalar_on_host(name, value), low, high)
    return value


def all_parameters(name: str, *values: Any) -> None:
    """Raise unless each value is a Parameter, as ``in_place=True`` requires."""
    for value in values:
        if not isinstance(value, Parameter):
            raise TypeError(f"{name} must be MindSpore Parameters where in_place=True, but got {type(value).__name__}")


def at_least_0(name: str, value: Any) -> float:
    """``value`` as a float; raise unless it is finite and at least 0."""
    return number(name, value, 0.0)


def supplier_of(name: str, value: Any, check: Callable[[str, Any], float]) -> Callable[[], float] | None:
    """A function that calls the hyper-parameter's function and checks the result; None if ``value`` is no function."""
    if not is_supplier(value):
        return None

    def read() -> float:
        return check(name, value())

    return read


def check_int(name: str, value: object, low: int, hint: str = "") -> int:
    """``value``; raise unless it is an int of at least ``low``. ``hint`` is appended to the message."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, but got {value!r} of type {type(value).__name__}{hint}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, but got {value}{hint}")
    return value
