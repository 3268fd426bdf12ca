"""A run that goes on with another number of epochs: which numbers are allowed, and what its schedules then do."""

from __future__ import annotations

from typing import Any

from scripts.run_folder.progress_record import Position
from scripts.settings.schedule_settings import Schedule
from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import differences
from scripts.training.schedules import schedule_function
from thor.runtime.errors import UserError


def changes_besides_epochs(old: TrainSettings, new: TrainSettings) -> list[str]:
    """The settings that differ and forbid resuming, as `key: old -> new`; the number of epochs may change."""
    return differences(old, new.model_copy(update={"epochs": old.epochs}))


def check_epochs(new: TrainSettings, position: Position) -> None:
    """Raise UserError if the run has already begun an epoch after the last one."""
    begun = position.epoch + (position.step_in_epoch > 0)
    if new.epochs < begun:
        raise UserError(
            f"epochs = {new.epochs}: must be at least {begun}, for the run is at step {position.step}, in epoch {begun}"
        )


def describe_change(old: TrainSettings, new: TrainSettings, position: Position, steps_per_epoch: int) -> str | None:
    """One line that says what the schedules do from here; None if the number of epochs is the same."""
    if old.epochs == new.epochs:
        return None
    if position.epoch >= new.epochs:
        return f"epochs: {old.epochs} -> {new.epochs}; nothing is left to train"
    updates, done = steps_per_epoch / new.accumulation, position.step // new.accumulation
    words = []
    for name, initial, schedule in _schedules(new):
        before, after = (schedule_function(initial, schedule, each.epochs, updates) for each in (old, new))
        last, following = before(max(0, done - 1)), after(done)
        moves = f"{name} goes from {last:.3g} {'back ' if following > last else ''}to {following:.3g}"
        if schedule.shape == "constant":
            words.append(f"{name} stays constant" if last == following else moves)
        elif schedule.end_epoch is None and schedule.end_update is None:
            words.append(f"the {schedule.shape} schedule now ends at epoch {new.epochs}: {moves}")
        else:
            end = f"update {schedule.end_update}" if schedule.end_update else f"epoch {schedule.end_epoch:g}"
            words.append(f"the {schedule.shape} schedule still ends at {end}: {moves}")
    return f"epochs: {old.epochs} -> {new.epochs}; {'; '.join(words)}"


def _schedules(settings: TrainSettings) -> list[tuple[str, float, Schedule]]:
    """Name, initial value and schedule of what the optimizer schedules."""
    own: Any = getattr(settings, settings.optimizer)
    found = [("the learning rate", own.learning_rate, own.schedule)]
    if settings.optimizer == "thor" and settings.thor.damping_schedule is not None:
        found.append(("the damping", own.damping, own.damping_schedule))
    return found
