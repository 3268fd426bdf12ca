"""Schedules of a configuration as functions of the update, for learning rates and damping."""

from __future__ import annotations

import math
from collections.abc import Callable

from scripts.settings.schedule_settings import Schedule


def schedule_function(
    initial: float, schedule: Schedule, epochs: int, updates_per_epoch: float
) -> Callable[[int], float]:
    """The scheduled value as a function of the update, counted from 0.

    Without a warm-up the first update has the initial value. With one it has that value divided by the number of
    updates of the warm-up. The published shape `thor` is one update ahead: it uses the epoch at the end of an update.
    """
    end_epoch = schedule.end_epoch or float(epochs)
    if schedule.end_update is not None:
        end_epoch = schedule.end_update / updates_per_epoch
    if schedule.shape == "thor":
        from thor.settings.schedules import PolynomialRate

        return PolynomialRate(
            initial, schedule.power, end_epoch, max(1, round(updates_per_epoch)), tuple(schedule.halve_at)
        )

    def value(update: int) -> float:
        epoch = update / updates_per_epoch
        rising = 1.0
        if epoch < schedule.warmup_epochs:
            rising = min(1.0, (update + 1) / (schedule.warmup_epochs * updates_per_epoch))
        progress = min(1.0, epoch / end_epoch)
        share = schedule.final + (1.0 - schedule.final) * _shape(schedule, progress)
        return initial * rising * share

    return value


def in_words(initial: float, schedule: Schedule, epochs: int) -> str:
    """A scheduled value for display, such as `0.05, cosine to 0 at epoch 4`."""
    words = f"{initial:g}, {schedule.shape}"
    if schedule.shape in ("polynomial", "thor"):
        words += f" of power {schedule.power:g}"
    if schedule.shape != "constant":
        end = f"epoch {schedule.end_epoch or epochs:g}"
        words += (
            f" to {initial * schedule.final:g} at {f'update {schedule.end_update}' if schedule.end_update else end}"
        )
    if schedule.halve_at:
        words += f", halved at epochs {', '.join(f'{epoch:g}' for epoch in schedule.halve_at)}"
    return words + (f", after {schedule.warmup_epochs:g} epochs of warm-up" if schedule.warmup_epochs else "")


def _shape(schedule: Schedule, progress: float) -> float:
    """The schedule's shape: 1 at progress 0 and, unless it is constant, 0 at progress 1."""
    if schedule.shape == "constant":
        return 1.0
    if schedule.shape == "linear":
        return 1.0 - progress
    if schedule.shape == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return float((1.0 - progress) ** schedule.power)
