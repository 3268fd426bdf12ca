"""A block size for every factor: the smallest that keeps it, within a budget."""

import itertools

import numpy as np
import pytest

from tests.support.networks import Mlp, make
from tests.support.profiles import DIMS, factor, profile
from thor.factors.blocks import even_cut
from thor.profile.layer_plan import block_seconds, choose_per_layer, factor_seconds


def test_each_factor_gets_its_smallest_size_below_the_threshold():
    plan = choose_per_layer(profile())
    assert plan.sizes == {"first": (64, 4), "conv": (64, 16), "last": (1, 4)}
    assert plan.above == ()


def test_the_order_of_patches_counts():
    assert choose_per_layer(profile(), order="position").sizes["conv"] == (16, 16)


def test_another_threshold_gives_another_plan():
    made = profile()
    made.threshold = 0.3
    assert choose_per_layer(made).sizes == {"first": (16, 4), "conv": (16, 16), "last": (1, 4)}


def test_a_factor_that_no_candidate_keeps_stays_whole():
    layers = [(factor("big", "a", 500, [0.9, 0.8, 0.7, 0.6]), factor("big", "g", 64, [0.9, 0.8, 0.7, 0.0]))]
    assert choose_per_layer(profile(layers=layers)).sizes == {"big": (500, 64)}


def test_seconds_are_the_measured_ones_joined_in_log_log_and_cubic_beyond():
    made = profile(block=lambda n: 1e-6 * n**2)
    assert block_seconds(made, 16) == pytest.approx(16**2 * 1e-6)
    assert block_seconds(made, 40) == pytest.approx(40**2 * 1e-6)  # a power is a straight line there
    assert block_seconds(made, 128) == pytest.approx(64**2 * 1e-6 * 2**3)
    conv = made.factors[2]
    size, count = even_cut(37, 16)
    assert factor_seconds(made, conv, 16) == pytest.approx(2 * count * block_seconds(made, size))


def lost(made, sizes):
    """Sum of all losses under the sizes."""
    given = [n for layer in made.layers for n in sizes[layer.name]]
    return sum(f.loss["channel"][DIMS.index(n)] for f, n in zip(made.factors, given, strict=True))


def seconds(made, sizes):
    given = [n for layer in made.layers for n in sizes[layer.name]]
    return sum(factor_seconds(made, f, n) for f, n in zip(made.factors, given, strict=True))


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3, 0.1])
def test_a_budget_is_kept_and_gives_up_little(share):
    """Greedy, not optimal: but never slower than asked, and no single factor could go back up within the budget."""
    made = profile(block=lambda n: 1e-6 * n**2)  # larger blocks cost more all the way
    free = choose_per_layer(made)
    fastest = sum(min(factor_seconds(made, f, n) for n in DIMS) for f in made.factors)
    budget = fastest + share * (free.seconds - fastest)
    plan = choose_per_layer(made, budget)
    assert plan.seconds <= budget
    assert plan.seconds == pytest.approx(seconds(made, plan.sizes))
    assert lost(made, plan.sizes) >= lost(made, free.sizes)
    named = [f.name for f in made.factors]
    flat = [n for layer in made.layers for n in plan.sizes[layer.name]]
    above = {x for x, f, n in zip(named, made.factors, flat, strict=True) if f.loss["channel"][DIMS.index(n)] >= 0.01}
    assert set(plan.above) == above


def test_the_budget_takes_the_factor_that_loses_least_per_second_saved():
    layers = [
        (factor("x", "a", 64, [0.9, 0.9, 0.9, 0.0]), factor("x", "g", 1, [0.0, 0.0, 0.0, 0.0])),
        (factor("y", "a", 64, [0.9, 0.9, 0.1, 0.0]), factor("y", "g", 1, [0.0, 0.0, 0.0, 0.0])),
    ]
    made = profile(layers=layers, block=lambda n: 1e-6 * n**3)
    free = choose_per_layer(made)
    assert free.sizes == {"x": (64, 1), "y": (64, 1)}
    plan = choose_per_layer(made, free.seconds * 0.99)
    assert plan.sizes == {"x": (64, 1), "y": (16, 1)}
    assert plan.above == ("y.a",)


def test_a_budget_that_no_plan_keeps_is_refused_with_what_can_be_reached():
    made = profile()
    fastest = min(
        seconds(made, {"first": sizes[:2], "conv": sizes[2:4], "last": sizes[4:]})
        for sizes in itertools.product(DIMS, repeat=6)
    )
    with pytest.raises(ValueError) as caught:
        choose_per_layer(made, 1e-9)
    assert all(word in str(caught.value) for word in ("budget = 1e-09 s", "no plan", "the fastest takes"))
    assert choose_per_layer(made, 1.001 * fastest).seconds <= 1.001 * fastest
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="budget must be greater than 0 seconds"):
            choose_per_layer(made, bad)


def test_the_plan_cuts_a_network_as_it_says():
    losses = [[0.9, 0.5, 0.0, 0.0], [0.9, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.9, 0.9, 0.0, 0.0]]
    sides = zip(("layers.0", "layers.0", "layers.1", "layers.1"), "agag", (6, 4, 5, 3), losses, strict=True)
    a0, g0, a1, g1 = (factor(*each) for each in sides)
    plan = choose_per_layer(profile(layers=[(a0, g0), (a1, g1)])).plan("block", order="position")
    assert (plan.split, plan.order, plan.block_size) == ("block", "position", 16)
    optimizer, _ = make(Mlp(), block_size=plan)
    assert [record.blocks for record in optimizer.layers] == [((1, 6), (1, 4)), ((5, 1), (1, 3))]
    assert np.all([plan.block_size_of("layers.10", side) == 16 for side in "ag"])  # names match whole
