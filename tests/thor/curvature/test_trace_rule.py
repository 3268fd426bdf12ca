import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reference
from thor.curvature.damping import damped_trace, pi_split
from thor.curvature.trace_rule import Decision, TraceRule

TRACES = st.floats(1e-6, 1e6)
THRESHOLDS = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted)


def run(rule, traces):
    """The rule over a sequence of fresh traces, as THOR applies it: (decisions, adopted traces)."""
    adopted, decisions, history = None, [], []
    for fresh in traces:
        if decisions and decisions[-1] is Decision.STOP:
            decisions.append(Decision.STOP)
        else:
            decision, _ = rule.decide(adopted, fresh)
            decisions.append(decision)
            adopted = fresh if decision is Decision.UPDATE else adopted
        history.append(adopted)
    return decisions, history


def test_the_first_candidate_always_updates():
    for rule in (TraceRule(), TraceRule.thor(), TraceRule.thor_stop(), TraceRule.thor_nt()):
        assert rule.decide(None, 1.0) == (Decision.UPDATE, None)


@pytest.mark.parametrize("rule", [TraceRule(), TraceRule.thor_nt()])
@pytest.mark.parametrize("fresh", [0.0, 1.0])
def test_a_block_without_a_trace_has_nothing_to_compare_with(rule, fresh):
    assert rule.decide(0.0, fresh) == (Decision.UPDATE, None)


def test_both_boundaries_belong_to_keep():
    rule = TraceRule(update=0.5, stop=0.25)  # powers of two: the changes below are exact
    assert rule.decide(1.0, 1.5) == (Decision.KEEP, 0.5)
    assert rule.decide(1.0, 1.25) == (Decision.KEEP, 0.25)
    assert rule.decide(1.0, np.nextafter(1.5, 2))[0] is Decision.UPDATE
    assert rule.decide(1.0, np.nextafter(1.25, 1))[0] is Decision.STOP
    assert rule.decide(1.0, 0.5) == (Decision.KEEP, 0.5)
    assert rule.decide(1.0, 0.75) == (Decision.KEEP, 0.25)


def test_the_three_presets():
    assert (TraceRule.thor().update, TraceRule.thor().stop) == (0.01, 0.0)
    assert (TraceRule.thor_stop().update, TraceRule.thor_stop().stop) == (0.01, 0.001)
    assert (TraceRule.thor_nt().update, TraceRule.thor_nt().stop) == (0.0, 0.0)
    same = 1.0, 1.0
    assert TraceRule.thor().decide(*same)[0] is Decision.KEEP
    assert TraceRule.thor_stop().decide(*same)[0] is Decision.STOP
    assert TraceRule.thor_nt().decide(*same)[0] is Decision.UPDATE


def test_before_its_start_every_candidate_refreshes():
    rule = TraceRule.thor_stop(start=20)
    assert rule.at(19).decide(1.0, 1.0) == (Decision.UPDATE, 0.0)
    assert rule.at(20).decide(1.0, 1.0) == (Decision.STOP, 0.0)
    assert rule.at(20).decide(1.0, 1.005)[0] is Decision.KEEP
    assert TraceRule.thor(start=3) == TraceRule(update=0.01, stop=0.0, start=3)


@pytest.mark.parametrize(("start", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_wrong_start_is_refused(start, error):
    with pytest.raises(error, match=f"refresh start must be .*{start}"):
        TraceRule(start=start)


def test_slow_drift_adds_up_against_the_adopted_trace():
    decisions, _ = run(TraceRule.thor_stop(), [1.004**k for k in range(7)])
    update, keep = Decision.UPDATE, Decision.KEEP
    assert decisions == [update, keep, keep, update, keep, keep, update]


@given(THRESHOLDS, TRACES, TRACES)
def test_the_decision_is_the_papers_three_way_split(thresholds, adopted, fresh):
    stop, update = thresholds
    decision, change = TraceRule(update=update, stop=stop).decide(adopted, fresh)
    assert change == abs(fresh - adopted) / adopted
    if update == 0 or change > update:
        assert decision is Decision.UPDATE
    elif change >= stop:
        assert decision is Decision.KEEP
    else:
        assert decision is Decision.STOP


@given(THRESHOLDS, st.lists(TRACES, min_size=1, max_size=20))
def test_over_any_sequence_the_adopted_trace_is_never_farther_than_update(thresholds, traces):
    stop, update = thresholds
    decisions, adopted = run(TraceRule(update=update, stop=stop), traces)
    for decision, fresh, kept in zip(decisions, traces, adopted, strict=True):
        if decision is Decision.STOP:
            break
        assert abs(fresh - kept) / kept <= update
    if Decision.STOP in decisions:
        first = decisions.index(Decision.STOP)
        assert set(decisions[first:]) == {Decision.STOP}
        assert len(set(adopted[first:])) == 1


@given(st.floats(0, 1), st.lists(TRACES, min_size=1, max_size=20))
def test_without_a_stop_threshold_no_sequence_stops(update, traces):
    assert Decision.STOP not in run(TraceRule(update=update, stop=0.0), traces)[0]


@given(st.lists(TRACES, min_size=1, max_size=20))
def test_without_a_trace_test_every_candidate_updates(traces):
    assert set(run(TraceRule.thor_nt(), traces)[0]) == {Decision.UPDATE}


@given(THRESHOLDS, TRACES, TRACES, st.integers(-20, 20))
def test_the_decision_does_not_depend_on_the_scale(thresholds, adopted, fresh, power):
    stop, update = thresholds
    rule = TraceRule(update=update, stop=stop)
    assert rule.decide(adopted, fresh) == rule.decide(adopted * 2.0**power, fresh * 2.0**power)


@given(st.floats(1e-8, 1e3), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 4096), st.integers(1, 4096))
def test_the_two_dampings_multiply_to_the_damping_and_are_never_nan(damping, trace_a, trace_g, dim_a, dim_g):
    a, g = pi_split(damping, trace_a, trace_g, dim_a, dim_g)
    assert a > 0 and g > 0 and math.isfinite(a) and math.isfinite(g)
    assert a * g == pytest.approx(damping)
    traces = damped_trace(damping, trace_a, trace_g, dim_a, dim_g)
    assert math.isfinite(traces) and traces > 0


def test_pi_and_the_damped_trace_equal_the_dense_construction():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 5)), 0.1 * rng.standard_normal((9, 3))
    a, g = x.T @ x, y.T @ y
    damping = 0.03
    pair = pi_split(damping, np.trace(a), np.trace(g), 5, 3)
    np.testing.assert_allclose(pair, reference.pi_damping(a, g, damping))
    whole = np.kron(g + pair[1] * np.eye(3), a + pair[0] * np.eye(5))
    assert damped_trace(damping, np.trace(a), np.trace(g), 5, 3) == pytest.approx(np.trace(whole))


def test_traces_of_many_groups_give_what_each_group_gives():
    """Groups at usual scales, and groups where a trace is zero, tiny or not finite."""
    special = [0.0, 1e-320, 1e300, math.inf, math.nan, 2.0]
    pairs = np.array([(a, g) for a in special for g in special])
    for function in (pi_split, damped_trace):
        together = np.array(function(0.03, *pairs.T, 10, 3))
        each = np.array([function(0.03, float(a), float(g), 10, 3) for a, g in pairs])
        assert together.T.shape == each.shape
        np.testing.assert_array_equal(together.T, each)
    finite = pairs[np.isfinite(pairs).all(1)]
    assert np.isfinite(pi_split(0.03, *finite.T, 10, 3)).all()
    assert [each.shape for each in pi_split(0.03, *np.ones((2, 1), np.float32), 10, 3)] == [(1,), (1,)]  # one group


def test_a_factor_without_scale_is_damped_evenly():
    assert pi_split(0.04, 0.0, 3.0, 4, 4) == (0.2, 0.2)
    assert pi_split(0.04, 3.0, 0.0, 4, 4) == (0.2, 0.2)
