"""Targets, choices among trials and medians, by hand."""

import math

import pytest

from scripts.convergence import measures
from scripts.convergence.measures import Spread
from tests.scripts.convergence.made import ACCURACIES, ERRORS, FULL, broken, run, trials

ERROR, ACCURACY = FULL.tasks["autoencoder"], FULL.tasks["resnet8-128"]
THREE = FULL.model_copy(update={"trials": 3})


def test_the_target_is_the_loosened_best_final_value_of_the_setters_trials():
    found = {
        "momentum": trials(run(0, [9.0, 2.0, 7.0]), broken(0), run(0, [8.0])),
        "adam": trials(run(0, [9.0, 6.0]), run(0, [9.0, 5.0]), broken(0)),
        "adafactor": trials(broken(0), broken(0), broken(0)),
        "muon": trials(run(0, [1.0]), run(0, [1.0]), run(0, [1.0])),  # sets no target
    }
    assert measures.target_of(THREE, "autoencoder", found) == (pytest.approx(5.0 * 1.02), "adam")
    better = {name: trials(*[run(0, [value])] * 3) for name, value in (("momentum", 0.7), ("adam", 0.8))}
    better["adafactor"] = trials(*[run(0, [0.6])] * 3)
    assert measures.target_of(THREE, "vit", better) == (pytest.approx(1 - 0.2 * 1.02), "adam")
    own = ERROR.model_copy(update={"target": 3.0})
    given = THREE.model_copy(update={"tasks": {"autoencoder": own}})
    assert measures.target_of(given, "autoencoder", {}) == (3.0, None)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, "autoencoder: momentum, adam, adafactor has not finished all trials"),
        (
            {"momentum": trials(run(0, [1.0])), "adam": trials(*[run(0, [1.0])] * 3)},
            "momentum, adafactor has not finished all",
        ),
        (
            {name: trials(*[broken(0)] * 3) for name in ("momentum", "adam", "adafactor")},
            "autoencoder: all trials of momentum, adam, adafactor broke down",
        ),
    ],
)
def test_where_there_is_no_target(found, message):
    with pytest.raises(measures.NoTargetError, match=message):
        measures.target_of(THREE, "autoencoder", found)


def test_which_trials_are_kept():
    found = trials(run(0, [9.0, 9.0, 2.0]), run(0, [9.0, 5.0, 4.0]), run(0, [9.0, 5.0, 3.0]), broken(0))
    assert measures.fastest(ERROR, found, 5.0) == 1, "of two that are as fast the earlier one"
    assert measures.ends_best(ERROR, found) == 0
    assert measures.fastest(ERROR, found, 1.0) == 0, "if none reaches the target, the one that ends best"
    assert measures.fastest(ERROR, trials(broken(0), broken(0)), 1.0) == 0
    assert measures.ends_best(ACCURACY, trials(run(0, [0.9, 0.7]), broken(0), run(0, [0.8]))) == 2


def test_time_to_target_by_hand():
    adam, muon, thor = (
        measures.to_target(ERROR, ERRORS.contenders[name].to_target, 5.0) for name in ("adam", "muon", "thor")
    )
    assert (adam.epochs, adam.seconds, adam.with_compiling, adam.reached, adam.runs) == (2.0, 20.0, 22.0, 2, 3)
    assert (muon.epochs, muon.seconds, muon.reached, muon.runs) == (math.inf, math.inf, 1, 3)
    assert muon.final == Spread(6.0, 5.0, math.inf)
    assert (thor.epochs, thor.seconds, thor.with_compiling, thor.reached) == (0.5, 5.0, 25.0, 3)
    assert (thor.final, thor.refreshes, thor.peak) == (Spread(3.0, 2.0, 4.0), 8, 2**30)
    assert measures.to_target(ACCURACY, ACCURACIES.contenders["adam"].to_target, 0.8).epochs == 1.0


def test_equal_budget_by_hand():
    adam = measures.equal_budget(ERROR, ERRORS.contenders["adam"].equal_budget)
    assert (adam.final, adam.best) == (Spread(4.6, 4.1, 5.5), Spread(4.5, 4.0, 5.5))
    assert (adam.broke_down, adam.runs) == (0, 3)
    muon = measures.equal_budget(ERROR, ERRORS.contenders["muon"].equal_budget)
    assert (muon.final, muon.broke_down) == (Spread(4.4, 4.0, math.inf), 1)
    lost = measures.equal_budget(ACCURACY, [broken(1), broken(2), run(3, [0.8])])
    assert (lost.final.median, lost.broke_down) == (-math.inf, 2)


def test_what_tuning_buys_by_hand():
    adam = measures.tuning(ERROR, ERRORS.contenders["adam"].trials, 5.0)
    assert (adam.trials, adam.first_final, adam.best_final) == (3, 6.0, 4.9)
    assert (adam.first_epochs, adam.best_epochs) == (math.inf, 1.0)


def test_the_median_curve():
    points = measures.curve(ERROR, ERRORS.contenders["adam"].to_target, lambda point: point.epoch)
    assert points == [
        (0.5, Spread(9.0, 9.0, 9.0)), (1.0, Spread(7.0, 6.0, 8.0)),
        (1.5, Spread(6.0, 4.0, 6.5)), (2.0, Spread(5.0, 5.0, 6.0)),
    ]  # fmt: skip
    muon = measures.curve(ERROR, ERRORS.contenders["muon"].equal_budget, lambda point: point.seconds)
    assert muon[-1] == (22.0, Spread(4.4, 4.0, math.inf))
    assert measures.curve(ERROR, [broken(1)], lambda point: point.epoch) == []


def test_what_is_compiled_after_the_target_was_reached_does_not_shorten_the_way_to_it():
    late = run(1, [6.0, 5.0, 4.0])
    points = [*late.points[:2], late.points[2].model_copy(update={"compiling": 10.0, "seconds": 25.0})]
    row = measures.to_target(ERROR, [late.model_copy(update={"points": points})], 5.0)
    assert (row.seconds, row.with_compiling) == (10.0, 12.0)


def test_a_run_takes_the_seconds_of_a_timed_run_step_by_step():
    slow, fast = run(2, [9.0, 4.0], compiling=3.0), run(1, [8.0, 5.0, 5.0], compiling=1.0)
    timed = measures.timed_by(slow, fast)
    assert [(each.seconds, each.compiling, each.value) for each in timed.points] == [(6.0, 1.0, 9.0), (11.0, 1.0, 4.0)]
    assert timed.timed_alone and timed.seed == 2 and measures.timed_by(broken(2), fast).broke_down
    with pytest.raises(ValueError, match="other steps"):
        measures.timed_by(fast, slow)
