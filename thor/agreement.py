"""What must be the same on every rank of a job: their collectives would not fit each other, or their weights."""

from __future__ import annotations

from typing import Any


def settings_to_share(optimizer: Any, accumulate: int) -> dict[str, Any]:
    """Settings of a :class:`thor.THOR` by name; schedules by what they are at its step."""
    options, step = optimizer.options, optimizer.step
    names = ("refresh", "factor_decay", "factor_share", "clip", "clip_each", "weight_decay", "weight_decay_mode",
             "max_bad_steps")  # fmt: skip
    return {name: getattr(options, name) for name in names} | {
        "block plan": optimizer.plan.asnumpy().tobytes(),
        "sharing": optimizer.ranks.sharing,
        "accumulate": accumulate,
        "interval": int(options.interval(step)),
        "factor_interval": options.gather_interval(step),
        "damping": float(options.damping(step)),
        "loss_scale": optimizer.scale.asnumpy().tolist(),
        "inner": type(optimizer.inner).__name__,
    }
