"""Schedules: the published learning-rate and damping recipes, and a growing refresh interval.

A schedule is any callable from the step, which counts from 0, to a number. A plain number is a constant schedule, and
MindSpore's ``LearningRateSchedule`` cells are accepted too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import mindspore as ms
import numpy as np

from first_order.checks import number


@dataclass(frozen=True)
class PolynomialRate:
    """lr(e) = initial (1 - e / end_epoch)^power, halved once more from each epoch in ``halve_at``.

    e = (step + 1) / steps_per_epoch is the time at the end of the step, in epochs. The configurations that THOR's
    authors released for ResNet-50 on ImageNet have initial 0.05803, power 4.0839 and end_epoch 53 on Ascend, and
    0.05672, 4.9687 and 50 on GPU; both halve at epochs 39 and 40.
    """

    initial: float
    power: float
    end_epoch: float
    steps_per_epoch: int
    halve_at: tuple[float, ...] = (39, 40)

    def __post_init__(self) -> None:
        _check_positive(self, "initial", "power", "end_epoch", "steps_per_epoch")
        if not isinstance(self.halve_at, tuple | list):
            raise TypeError(
                f"PolynomialRate halve_at must be a tuple of epochs, such as (39, 40), (39,) or (), "
                f"but got {self.halve_at!r} of type {type(self.halve_at).__name__}"
            )
        for index, at in enumerate(self.halve_at):
            number(f"PolynomialRate halve_at[{index}]", at, 0.0)

    def __call__(self, step: int) -> float:
        epoch = (step + 1) / self.steps_per_epoch
        halvings = sum(epoch >= at for at in self.halve_at)
        return self.initial * max(0.0, 1.0 - epoch / self.end_epoch) ** self.power * 0.5**halvings


@dataclass(frozen=True)
class ExponentialDamping:
    """damping(e) = initial * decay^(e / every), e = (step + 1) / steps_per_epoch.

    The released configurations for ResNet-50 have initial 0.03 and decay 0.50036 on Ascend, and 0.02345 and 0.5467 on
    GPU, both with ``every`` 10 epochs.
    """

    initial: float
    decay: float
    steps_per_epoch: int
    every: float = 10.0

    def __post_init__(self) -> None:
        _check_positive(self, "initial", "decay", "steps_per_epoch", "every")

    def __call__(self, step: int) -> float:
        return float(self.initial * self.decay ** ((step + 1) / self.steps_per_epoch / self.every))


@dataclass(frozen=True)
class RelativeDamping:
    """A damping that is a share of each layer's mean eigenvalue, (tr A / dim A) (tr G / dim G).

    It needs no knowledge of a task: the share has no unit, and stays right if the loss is scaled. ``share`` is a number
    or a callable of the step.
    """

    share: Any = 0.01

    def __post_init__(self) -> None:
        HostSchedule("RelativeDamping share", self.share)


@dataclass(frozen=True)
class GrowingInterval:
    """A refresh interval that grows from ``start`` to ``end`` steps, each ``factor`` times the one before.

    The Fisher changes fast early in training and slowly later, so refreshes become rarer: one per epoch if ``end`` is
    the number of steps in an epoch. The closed form interval(step) = min(end, start + (factor - 1) step) needs no
    state, so a resumed run has the same intervals.
    """

    start: int
    end: int
    factor: float = 1.5

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"GrowingInterval {name} must be an int of at least 1, but got {value!r}")
        if self.end < self.start:
            raise ValueError(f"GrowingInterval end must be at least start={self.start}, but got {self.end}")
        number("GrowingInterval factor", self.factor, 1.0)

    def __call__(self, step: int) -> int:
        return int(min(self.end, self.start + (self.factor - 1) * step))

    def step_of(self, length: float) -> int:
        """The first step whose interval is ``length`` or longer; that of the longest interval if none is so long."""
        if self.start >= min(length, self.end) or self.factor == 1:
            return 0
        return math.ceil((min(length, self.end) - self.start) / (self.factor - 1))


def default_first_test(interval: Any, factor_decay: float) -> int:
    """The default ``start`` of the trace rule: the step at which a growing interval reaches the average's memory.

    A running average forgets a batch in about 1 / (1 - decay) steps. Candidates that are closer share most of their
    batches, so that an unchanged trace tells nothing of the layer. Any other interval is tested from the first step.
    """
    return interval.step_of(round(1 / (1 - factor_decay))) if isinstance(interval, GrowingInterval) else 0


def _check_positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
            raise ValueError(f"{type(owner).__name__} {name} must be a positive number, but got {value!r}")


class HostSchedule:
    """A hyper-parameter that is read on the host at each step and checked.

    Args:
        name: for error messages.
        value: a number, a callable of the step, or a MindSpore ``LearningRateSchedule``.
        low: lower bound of the values.
        above: True if ``low`` itself is excluded.
        integer: True if values must be integers.

    Raises:
        TypeError, ValueError: for a wrong constant; for a schedule, when it is called.
    """

    def __init__(self, name: str, value: Any, *, low: float = 0.0, above: bool = True, integer: bool = False):
        self.name, self.low, self.above, self.integer = name, low, above, integer
        if isinstance(value, bool) or not (isinstance(value, Real) or callable(value)):
            raise TypeError(
                f"{name} must be {'an int' if integer else 'a number'} or a callable of the step, "
                f"but got {value!r} of type {type(value).__name__}"
            )
        self.value = value
        self.constant = isinstance(value, Real)
        if self.constant:
            self._check(value, "")

    def __call__(self, step: int) -> Any:
        """The value at ``step``, checked."""
        if self.constant:
            return self.value
        if isinstance(self.value, ms.nn.Cell):
            result = self.value(ms.Tensor(step, ms.int32)).asnumpy().item()
        else:
            result = self.value(step)
        if isinstance(result, ms.Tensor):
            result = result.asnumpy().item()
        return self._check(result, f" at step {step}")

    def _check(self, value: Any, where: str) -> Any:
        kinds: tuple[type, ...] = (int, np.integer) if self.integer else (Real,)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise TypeError(f"{self.name} must be {'an int' if self.integer else 'a number'}{where}, but got {value!r}")
        size = float(value)  # type: ignore[arg-type]  # a Real: mypy cannot see through `kinds`
        inside = size > self.low if self.above else size >= self.low
        if not (math.isfinite(size) and inside):
            bound = "greater than" if self.above else "at least"
            raise ValueError(f"{self.name} must be finite and {bound} {self.low:g}{where}, but got {value}")
        return value
