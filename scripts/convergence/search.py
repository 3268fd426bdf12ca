"""Trials of a deterministic quasi-random search, and the configuration of a run."""

from __future__ import annotations

import math
from typing import Any

from scipy.stats import qmc

from scripts.convergence.rules import LENGTH, Range, Rules, Space, Task
from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import validate
from thor.runtime.errors import UserError

Values = dict[str, Any]  # searched settings by path, and the length

#: Epochs of the published run of THOR on ImageNet, over which its schedules fall.
PUBLISHED_EPOCHS = 45


def trials(rules: Rules, task: str, contender: str) -> list[Values]:
    """The settings of each trial: the first guess, then points of a scrambled Sobol sequence over the space.

    Any 2^k first points of such a sequence have one in each of 2^k equal parts of every setting's values, where random
    points may miss half of a range. More trials begin with those of fewer.
    """
    space = rules.space(task, contender)
    found = [{path: _first(values) for path, values in space.items()}]
    # the base-2 balance needs a power of two, so that many are drawn and the first ones are taken
    needed = max(0, rules.trials - 1)
    points = qmc.Sobol(len(space), scramble=True, seed=rules.search_seed).random_base2(
        math.ceil(math.log2(needed or 1))
    )
    for point in points[:needed].tolist():
        found.append({path: _at(values, share) for (path, values), share in zip(space.items(), point, strict=True)})
    return found


def _first(values: Space) -> Any:
    """The first guess in a space."""
    return values.first if isinstance(values, Range) else values[0]


def _at(values: Space, share: float) -> Any:
    """The value at a position `share` (0 to 1) in a range on a logarithmic scale, or in a list."""
    if isinstance(values, Range):
        low, high = math.log(values.low), math.log(values.high)
        return min(values.high, max(values.low, float(f"{math.exp(low + share * (high - low)):.3g}")))
    return values[min(int(share * len(values)), len(values) - 1)]


def epochs_of(task: Task, values: Values) -> int:
    """Epochs of a run with these searched values."""
    return max(1, round(values[LENGTH] * task.epochs)) if LENGTH in values else task.epochs


def settings(rules: Rules, task: str, contender: str, values: Values, seed: int) -> TrainSettings:
    """The configuration of a run; UserError that names task and contender if it is not a valid one."""
    about, own = rules.tasks[task], rules.contenders[contender]
    epochs = epochs_of(about, values)
    flat: Values = {**about.settings, **_preset(own.preset, about.steps_per_epoch, epochs), **own.fixed}
    flat |= {path: value for path, value in values.items() if path != LENGTH}
    flat |= {"optimizer": own.optimizer, "seed": seed, "epochs": epochs, "device": "CPU"}
    nested: Values = {}
    for path, value in flat.items():
        *blocks, key = path.split(".")
        place = nested
        for block in blocks:
            place = place.setdefault(block, {})
            if not isinstance(place, dict):
                raise UserError(f"task {task}, contender {contender}: {path} is set, and {block} is {place!r} already")
        place[key] = value
    try:
        return validate(nested)
    except UserError as error:
        raise UserError(f"task {task}, contender {contender}: {error}") from None


def check(rules: Rules) -> None:
    """Raise UserError if a trial of a contender is no valid run, before hours of training."""
    for task in rules.tasks:
        for contender in rules.contenders:
            for values in trials(rules, task, contender):
                settings(rules, task, contender, values, rules.tuning_seed)


def _preset(name: str | None, steps_per_epoch: int, epochs: int) -> Values:
    """Settings of the paper's THOR, with its schedules over the epochs of the run in place of the published 45."""
    if name is None:
        return {}
    from thor.settings.presets import paper  # here, for it imports MindSpore

    published = paper(steps_per_epoch)
    rate, damping = published.pop("learning_rate"), published.pop("damping")
    stretch = epochs / PUBLISHED_EPOCHS
    found = {f"thor.{key}": value for key, value in published.items() if key != "refresh"}
    schedule = {
        "shape": "thor", "power": rate.power, "end_epoch": rate.end_epoch * stretch,
        "halve_at": [epoch * stretch for epoch in rate.halve_at],
    }  # fmt: skip
    decay = damping.decay ** (1 / stretch)
    return found | {"thor.schedule": schedule, "thor.damping_decay": decay, "thor.refresh": "thor"}
