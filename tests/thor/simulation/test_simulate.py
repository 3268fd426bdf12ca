"""The simulated step: its parts add up, and follow from the placement as they must."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import DIMS, profile
from thor.factors.blocks import SPLITS, BlockPlan
from thor.profile.timing import state_bytes
from thor.simulation.network import Link, Network
from thor.simulation.simulate import Settings, share_name, simulate, strategies
from thor.simulation.workload import layer_loads

PROFILE = profile()
NETWORK = Network.uniform(Link(1e-6, 1e-9), Link(2e-6, 4e-9), node=4)
FREE = Network.uniform(Link(0.0, 0.0))
SETTINGS = {"step_ms": 20.0, "batch": 32, "factor_ms": 8.0, "precondition_ms": 2.0,
            "interval": 50, "factor_interval": 5}  # fmt: skip


def loads(block_size=16, split="block"):
    return layer_loads(PROFILE, BlockPlan(block_size=block_size, split=split))


def run(devices, network=NETWORK, fractions=(0.5,), **changes):
    found = simulate(loads(), Settings(**SETTINGS | changes), network, devices, fractions)
    return {estimate.strategy: estimate for estimate in found}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("dim", DIMS)
def test_with_all_inverses_a_rank_holds_what_one_device_does(dim, split):
    plan = BlockPlan(block_size=dim, split=split, rank=3)
    found = layer_loads(PROFILE, plan)
    held = sum(load.estimate_bytes + load.inverse_bytes for load in found)
    shapes = [shape for layer in PROFILE.layers for shape in layer.shapes]
    scalars = 2 * len(shapes) * 4  # the counter beside an estimate is one there and one here; s and t are shared out
    assert abs(held - state_bytes(shapes, plan, "lapack")) <= scalars


def test_a_layers_load_by_hand():
    """The convolution: two groups of 37 x 8 in blocks of at most 16, so of 13 and of 8."""
    load = loads()[1]
    a, g = load.factors
    assert (a.work.layer, a.work.side, a.work.blocks) == (1, "a", 2 * 3)
    assert (g.work.layer, g.work.side, g.work.blocks) == (1, "g", 2)
    assert a.averaged_bytes == 4 * 6 * 13 * 14 // 2, "triangles"
    assert load.gradient_bytes == 4 * 2 * 37 * 8
    assert load.operations == 2 * (2 * 37 * 8) * (13 + 8)
    assert a.piece_bytes(2) + a.piece_bytes(4) == a.piece_bytes(6) == a.averaged_bytes
    assert a.inverse_bytes >= 4 * 6 * 13**2 > a.piece_bytes(6)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 60), st.integers(1, 60))
def test_the_mean_step_is_the_sum_of_what_happens_over_an_interval(devices, factor_interval, times):
    """Counted step by step, over an interval that gathers whole numbers of times."""
    interval = factor_interval * times
    for estimate in run(devices, interval=interval, factor_interval=factor_interval).values():
        parts, total = estimate.parts, 0.0
        for step in range(interval):
            if step % interval == 0:
                total += parts.refresh
            else:
                total += parts.curvature if step % factor_interval == 0 else parts.plain
        assert estimate.step == pytest.approx(total / interval)


def test_on_one_device_all_is_naive_and_nothing_is_sent():
    found = run(1)
    assert set(found) == {"naive", "all"}
    assert found["naive"].parts == found["all"].parts
    parts = found["all"].parts
    assert parts.average_gradients == parts.average_factors == parts.spread_gradients == parts.exchange_inverses == 0
    assert parts.plain == pytest.approx(0.022) and parts.curvature == pytest.approx(0.030)


def test_each_strategy_pays_for_what_it_does():
    found = run(8)
    naive, everyone, half, one = (found[name].parts for name in ("naive", "all", "0.5", "one"))
    assert naive.exchange_inverses == naive.spread_gradients == everyone.spread_gradients == one.exchange_inverses == 0
    assert min(everyone.exchange_inverses, half.exchange_inverses, half.spread_gradients, one.spread_gradients) > 0
    assert naive.precondition == everyone.precondition == pytest.approx(0.002)
    assert one.precondition <= half.precondition < everyone.precondition
    assert everyone.invert < naive.invert
    for parts in (everyone, half, one):
        assert parts.average_gradients == naive.average_gradients and parts.average_factors == naive.average_factors
    memory = [found[name].memory for name in ("all", "0.5", "one")]
    assert memory == sorted(memory, reverse=True) and found["naive"].memory == memory[0]


@given(st.sampled_from([1, 2, 4, 8, 32]))
def test_with_a_free_network_sharing_never_loses(devices):
    found = run(devices, FREE)
    naive = found.pop("naive")
    assert all(estimate.step <= naive.step * (1 + 1e-12) for estimate in found.values())


def test_inverting_is_shared_down_to_one_block():
    """On more ranks than blocks, one block sets the time; per layer, a layer."""
    seconds = [factor.block_seconds for load in loads() for factor in load.factors]
    assert run(64)["all"].parts.invert == pytest.approx(max(seconds))
    whole = [sum(factor.seconds for factor in load.factors) for load in loads()]
    assert run(64, per="layer")["all"].parts.invert == pytest.approx(max(whole))


def test_a_step_measured_on_some_devices_has_their_all_reduce_taken_off():
    assert run(8, step_devices=8)["all"].parts.plain == pytest.approx(0.022)
    hidden = run(8, step_devices=8, overlap=1.0)["all"].parts
    assert hidden.average_gradients == 0 and hidden.compute == pytest.approx(0.020)
    with pytest.raises(ValueError, match="step_ms = 1e-06 on step_devices = 8 is less than their all-reduce"):
        run(8, step_devices=8, step_ms=1e-6)


def test_gradients_of_weights_outside_the_layers_are_averaged_too():
    own = sum(load.gradient_bytes for load in loads())
    found = run(8, other_gradient_bytes=5 * own)["all"].parts.average_gradients
    assert found == pytest.approx(NETWORK.seconds("all_reduce", range(8), 6 * own))


def test_fractions_that_are_all_or_one_are_not_repeated():
    assert list(strategies(8, [0.125, 0.5, 1.0, 0.5])) == ["all", "0.5", "one"]
    with pytest.raises(ValueError, match="0.3 of 10 ranks is 3, which does not divide"):
        strategies(10, [0.3])
    assert list(strategies(12, [0.125])) == ["all", "0.1667", "one"], "named by the two ranks that it is rounded to"
    assert [share_name(6, name) for name in ("0.333", "0.3333", "all", "one")] == ["0.3333", "0.3333", "all", "one"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step_ms": 0.0}, "step_ms must be finite and greater than 0, but got 0.0"),
        ({"step_ms": float("nan")}, "step_ms must be finite and greater than 0, but got nan"),
        ({"factor_ms": -1.0}, "factor_ms must be finite and at least 0, but got -1.0"),
        ({"precondition_ms": float("inf")}, "precondition_ms must be finite"),
        ({"overlap": 1.5}, "overlap must be finite and at least 0 and at most 1, but got 1.5"),
        ({"batch": 0}, "batch must be at least 1, but got 0"),
        ({"interval": 0}, "interval must be at least 1, but got 0"),
        ({"factor_interval": 51}, "factor_interval must be at most the interval, 50, but got 51"),
        ({"per": "rank"}, "per must be one of layer, factor, block, but got 'rank'"),
    ],
)
def test_settings_say_what_is_allowed(change, words):
    with pytest.raises(ValueError, match=words):
        Settings(**SETTINGS | change)
