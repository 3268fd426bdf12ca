"""Schedules of learning rates and of the damping, and sections that one value may stand for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, model_validator

from scripts.settings.types import Count, NonNegative, Positive, Settings, Share


def from_name(key: str) -> BeforeValidator:
    """Let one value stand for a section: `schedule: cosine` is `schedule: {shape: cosine}`."""

    def expand(value: Any) -> Any:
        return {key: value} if not isinstance(value, dict | BaseModel) else value

    return BeforeValidator(expand)


class Schedule(Settings):
    """How a learning rate, or the damping, changes over the run, in epochs.

    Attributes:
        shape: `polynomial` is (1 - epoch / end_epoch)^power. `thor` is the schedule of THOR's authors: the same
            formula at the epoch in which a step ends, halved at each epoch of `halve_at`.
        power: Exponent of `polynomial` and `thor`.
        end_epoch: Epoch at which the shape reaches its final value; by default the run's last.
        end_update: The same as a number of updates; give only one of end_epoch and end_update.
        final: Final value, as a share of the initial value.
        warmup_epochs: Epochs over which the rate first rises linearly from zero.
        halve_at: Epochs at which the shape `thor` is halved.
    """

    shape: Literal["constant", "linear", "cosine", "polynomial", "thor"] = "cosine"
    power: Positive = 2.0
    end_epoch: Positive | None = None
    end_update: Count | None = None
    final: Share = 0.0
    warmup_epochs: NonNegative = 0.0
    halve_at: list[Positive] = []

    @model_validator(mode="after")
    def _check_shape_thor(self) -> Schedule:
        """Refuse warm-up and a final value with the shape thor, and halving with another shape."""
        if self.shape == "thor" and (self.warmup_epochs or self.final):
            raise ValueError("the shape thor has neither warmup_epochs nor final")
        if self.shape != "thor" and self.halve_at:
            raise ValueError(f"halve_at belongs to the shape thor, and the shape is {self.shape}")
        return self

    @model_validator(mode="after")
    def _check_shape_options(self) -> Schedule:
        """Refuse settings that the chosen shape does not use, and two ends."""
        if self.shape not in ("polynomial", "thor") and self.power != type(self).model_fields["power"].default:
            raise ValueError(f"power belongs to the shapes polynomial and thor, and the shape is {self.shape}")
        ending = [name for name in ("final", "end_epoch", "end_update") if getattr(self, name)]
        if self.shape == "constant" and ending:
            raise ValueError(f"{ending[0]} tells how a shape ends, and the shape is constant; leave it out")
        if self.end_epoch is not None and self.end_update is not None:
            raise ValueError("has both end_epoch and end_update; give one of them")
        return self


NamedSchedule = Annotated[Schedule, from_name("shape")]
