"""Checks of numbers and flags: a message has the name, the value, what is allowed and, where it helps, what to do.

Nothing here imports MindSpore; :mod:`first_order.tensor_checks` has the checks of tensors.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


def number(
    name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> float:  # fmt: skip
    """A finite number in [low, high], an open end left out, or an error."""
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
    """True or False, or an error."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, but got {value!r} of type {type(value).__name__}")
    return value


def at_least_0(name: str, value: Any) -> float:
    """A number from 0."""
    return number(name, value, 0.0)


def check_int(name: str, value: object, low: int, hint: str = "") -> int:
    """``value`` as an int of at least ``low``, or an error with name, value and what is allowed."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, but got {value!r} of type {type(value).__name__}{hint}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, but got {value}{hint}")
    return value
