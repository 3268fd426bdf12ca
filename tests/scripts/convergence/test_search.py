"""The search: the same trials for everybody, within their spaces, and configurations that differ in the optimizer."""

import json
import math

import pytest

from scripts.convergence import rules, search
from scripts.convergence.rules import Range
from scripts.settings.yaml_config import resolved

FULL = rules.load(rules.DEFAULT)
EACH = [(task, contender) for task in FULL.tasks for contender in FULL.contenders]


@pytest.mark.parametrize(("task", "contender"), EACH, ids=["-".join(each) for each in EACH])
def test_every_trial_is_a_valid_run_within_its_space(task, contender):
    space = FULL.space(task, contender)
    drawn = search.trials(FULL, task, contender)
    assert drawn[0] == {path: each.first if isinstance(each, Range) else each[0] for path, each in space.items()}
    assert drawn[:3] == search.trials(FULL.model_copy(update={"trials": 3}), task, contender)
    assert len({json.dumps(values) for values in drawn}) == 5
    for values in drawn:
        settings = search.settings(FULL, task, contender, values, 7)
        assert (settings.optimizer, settings.seed) == (FULL.contenders[contender].optimizer, 7)
        assert settings.epochs == round(values["length"] * FULL.tasks[task].epochs)
        for path, allowed in space.items():
            if isinstance(allowed, Range):
                assert allowed.low <= values[path] <= allowed.high
            else:
                assert values[path] in allowed


def test_every_quarter_of_a_range_has_one_of_four_points():
    for task, contender in EACH:
        for path, space in FULL.space(task, contender).items():
            if isinstance(space, Range):
                width = math.log(space.high / space.low)
                places = [math.log(values[path] / space.low) / width for values in search.trials(FULL, task, contender)]
                for quarter, place in enumerate(sorted(places[1:])):  # values are rounded to three digits
                    assert quarter / 4 - 0.01 <= place <= (quarter + 1) / 4 + 0.01


def test_another_seed_of_the_search_draws_other_trials():
    other = search.trials(FULL.model_copy(update={"search_seed": 1}), "vit", "adam")
    assert other[0] == search.trials(FULL, "vit", "adam")[0] and other != search.trials(FULL, "vit", "adam")


def test_optimizers_of_a_task_differ_in_nothing_but_the_optimizer():
    own = {"optimizer", "epochs", "thor", "momentum", "adam", "adafactor", "muon", "soap"}
    for task in FULL.tasks:
        runs = [
            resolved(search.settings(FULL, task, name, search.trials(FULL, task, name)[0], 1))
            for name in FULL.contenders
        ]
        assert len({json.dumps({k: v for k, v in run.items() if k not in own}) for run in runs}) == 1
    first = search.trials(FULL, "vit", "thor")[0]
    assert search.trials(FULL, "vit", "thor_stop")[0] == first
    thor, stop = (resolved(search.settings(FULL, "vit", name, first, 1))["thor"] for name in ("thor", "thor_stop"))
    assert thor["refresh"]["preset"] == "thor_nt" and stop["refresh"]["stop"] > 0
    assert {key for key in thor if thor[key] != stop[key]} == {"refresh"}


@pytest.mark.parametrize("contender", ["thor", "thor_inverse"])
def test_thor_has_its_defaults(contender):
    """But for what is searched: rate, decay, and the first beta or the momentum."""
    from dataclasses import fields, replace

    from mindspore import nn

    import thor
    from scripts.training.optimizers import build_stepper

    def network():
        return nn.SequentialCell(nn.Dense(6, 5), nn.Dense(5, 3))

    values = search.trials(FULL, "resnet8-128", contender)[2]
    settings = search.settings(FULL, "resnet8-128", contender, values, 1)
    ours = build_stepper(settings, network(), nn.CrossEntropyLoss(), 78).optimizer.options
    plain = thor.THOR(network(), 0.1, precondition=settings.thor.precondition).options
    changed = {field.name for field in fields(plain) if getattr(ours, field.name) != getattr(plain, field.name)}
    assert changed <= {"interval", "damping", "adam", "weight_decay"}
    for name in ("interval", "damping"):
        mine, default = getattr(ours, name), getattr(plain, name)
        assert mine is default or [mine(step) for step in (0, 9, 500)] == [default(step) for step in (0, 9, 500)]
    if ours.adam is not None:
        assert replace(ours.adam, beta1=plain.adam.beta1) == plain.adam


def test_the_papers_schedules_fall_over_the_run_as_over_the_published_one():
    """At the same share of the run rate and damping have fallen by the same factor."""
    from scripts.training.optimizers import thor_damping, thor_rate
    from thor.settings.presets import paper

    steps = FULL.tasks["resnet8-128"].steps_per_epoch
    values = {"length": 0.5, "thor.learning_rate": 0.05803, "thor.damping": 0.03}
    settings = search.settings(FULL, "resnet8-128", "thor_paper", values, 1)
    published = paper(steps)
    assert settings.epochs == 5 and settings.thor.interval.start == published["interval"] == 13
    for share in (0.2, 0.5, 0.85, 0.88, 1.0):
        ours, theirs = round(share * 5 * steps) - 1, round(share * 45 * steps) - 1
        assert thor_rate(settings, steps)(ours) == pytest.approx(published["learning_rate"](theirs), rel=0.03)
        assert thor_damping(settings, steps)(ours) == pytest.approx(published["damping"](theirs), rel=0.03)
    for name in ("momentum", "weight_decay", "split", "block_size", "factor_interval", "factor_decay", "precondition"):
        assert getattr(settings.thor, name) == published[name]
    assert settings.thor.refresh.preset == "thor"
