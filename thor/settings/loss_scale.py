"""Loss scales: a fixed factor, or one that adapts to overflow. The current value is part of THOR's state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import mindspore as ms
import numpy as np

from first_order.checks import check_int, number

#: The largest scale. It is stored as float32: a larger one would be infinite and make every gradient non-finite.
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class DynamicLossScale:
    """Divide by ``factor`` at an overflow, multiply by it after ``window`` finite steps in a row.

    Args:
        initial: the first scale. A high one is cheap: an overflow costs one skipped step.
        factor: by which the scale grows and falls; greater than 1.
        window: number of finite steps in a row before the scale grows.
        minimum: the smallest scale; an overflow there counts as a non-finite step.
    """

    initial: float = 2.0**16
    factor: float = 2.0
    window: int = 1000
    minimum: float = 1.0

    def __post_init__(self) -> None:
        number("loss scale minimum", self.minimum, 0.0, open_low=True)
        number("loss scale initial", self.initial, self.minimum, LARGEST)
        number("loss scale factor", self.factor, 1.0, open_low=True)
        check_int("loss scale window", self.window, 1)

    def grown(self, scale: float) -> float:
        """The scale after ``window`` finite steps; unchanged where the next one would overflow float32."""
        grown = scale * self.factor
        return grown if math.isfinite(np.float32(grown)) else scale

    def fallen(self, scale: float) -> float | None:
        """The scale after an overflow; None where it is at its minimum already."""
        return max(self.minimum, scale / self.factor) if scale > self.minimum else None


def read(value: Any) -> tuple[float, DynamicLossScale | None]:
    """The initial scale and the adaptive rule, None for a fixed scale, of the setting ``loss_scale``.

    Args:
        value: a number, a :class:`DynamicLossScale`, or MindSpore's ``amp.StaticLossScaler`` or
            ``amp.DynamicLossScaler``.

    Raises:
        TypeError: for another type.
        ValueError: for a number that is not positive or not finite in float32.
    """
    if isinstance(value, DynamicLossScale):
        return value.initial, value
    if isinstance(value, ms.amp.DynamicLossScaler):
        initial = float(value.scale_value.asnumpy())
        rule = DynamicLossScale(
            initial=initial, factor=float(value.scale_factor), window=int(value.scale_window), minimum=min(1.0, initial)
        )
        return initial, rule
    if isinstance(value, ms.amp.StaticLossScaler):
        value = value.scale_value
        value = value.asnumpy().item() if isinstance(value, ms.Tensor) else value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"loss_scale must be a number, thor.DynamicLossScale or a mindspore.amp loss scaler, but got {value!r}"
        )
    return number("loss_scale", value, 0.0, LARGEST, open_low=True), None
