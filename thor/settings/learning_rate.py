"""The learning rate on the host: a schedule whose value is written at every step, and a list of rates that may end."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from thor.settings.schedules import HostSchedule


class HostRate:
    """Writes the value of a schedule into an optimizer's ``learning_rate``."""

    def __init__(self, schedule: HostSchedule, inner: nn.Optimizer):
        self.schedule, self.inner = schedule, inner
        self._written: np.float32 | None = None

    def write(self, step: int) -> None:
        """Write the rate of this step; raise ValueError if something else has written one since the last step."""
        value, present = np.float32(self.schedule(step)), self.inner.learning_rate.asnumpy()
        if self._written is not None and present != self._written:
            raise ValueError(
                f"learning_rate is a function of the step, {self._written:g} at the last one, and something else, as a "
                f"callback, has set it to {present:g}: give THOR a number as learning_rate, or leave the callback out"
            )
        if present != value:
            ops.assign(self.inner.learning_rate, Tensor(value))
        self._written = value

    def forget(self) -> None:
        """The present rate may be a loaded one."""
        self._written = None


class RateList:
    """Notices when the list of learning rates that an optimizer was given, one a step, has ended.

    The optimizer's count of steps lies on the device, and is read only when the list may have ended.
    """

    def __init__(self, inner: nn.Optimizer):
        self.inner, self.count, self._left = inner, count_rates(inner), 0

    def before_step(self) -> None:
        """Raise ValueError if the list has no rate for the coming step."""
        if self.count is None:
            return
        if self._left == 0:
            step = int(self.inner.global_step.asnumpy()[0])
            if step >= self.count:
                raise ValueError(
                    f"learning_rate is a list of {self.count} rates, one a step, and step {step} has none: give one "
                    f"for each step of the training"
                )
            self._left = self.count - step
        self._left -= 1

    def forget(self) -> None:
        """The count of steps may be a loaded one."""
        self._left = 0


def count_rates(inner: nn.Optimizer) -> int | None:
    """How many learning rates an optimizer was given as a list, one a step; None where its rate never ends."""
    several = isinstance(inner.learning_rate, tuple | nn.CellList)  # one for each weight, if groups have their own
    rates = inner.learning_rate if several else (inner.learning_rate,)
    lists = [getattr(rate, "learning_rate", None) for rate in rates]
    counts = [each.shape[0] for each in lists if isinstance(each, Parameter) and each.ndim == 1]
    return min(counts, default=None)
