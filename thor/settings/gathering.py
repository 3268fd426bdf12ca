"""What follows from the refresh interval where it is not set: how often factors are gathered, the first trace test."""

from __future__ import annotations

from typing import Any

from thor.settings.schedules import GrowingInterval

#: Steps per refresh interval that gather factors for the running average, where ``factor_interval`` is not set.
GATHERS_PER_INTERVAL = 10


def default_factor_interval(interval: int) -> int:
    """The default ``factor_interval`` with a running average, in steps: a tenth of the refresh interval."""
    return max(1, interval // GATHERS_PER_INTERVAL)


def default_first_test(interval: Any, factor_decay: float) -> int:
    """The default ``start`` of the trace rule: the step at which a growing interval reaches the average's memory.

    A running average forgets a batch in about 1 / (1 - decay) steps. Candidates that are closer share most of their
    batches, so that an unchanged trace tells nothing of the layer. Any other interval is tested from the first step.
    """
    return interval.step_of(round(1 / (1 - factor_decay))) if isinstance(interval, GrowingInterval) else 0
