"""Checks of arguments. Every error message has the name, the value and what is allowed, and a hint if it helps."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


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


def at_least_0(name: str, value: Any) -> float:
    """``value`` as a float; raise unless it is finite and at least 0."""
    return number(name, value, 0.0)


def below_1(name: str, value: Any) -> float:
    """``value`` as a float; raise unless it is in [0, 1), as the decay of a running average."""
    return number(name, value, 0.0, 1.0, open_high=True)


def check_int(name: str, value: object, low: int, hint: str = "") -> int:
    """``value``; raise unless it is an int of at least ``low``. ``hint`` is appended to the message."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, but got {value!r} of type {type(value).__name__}{hint}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, but got {value}{hint}")
    return value
