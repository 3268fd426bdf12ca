"""The trace rule at work: update, keep, stop, and what a stopped layer no longer costs."""

import numpy as np
import pytest
from mindspore import Tensor, nn

import thor
from tests.support.networks import Mixed, Mlp, batch, gradients, images, make, matrix, squared_error, values
from thor import Decision, TraceRule
from thor.step.graphs import RECOMPILE_SHARE

STOP_NEXT = TraceRule(update=1e6, stop=1e6)  # the second candidate stops whatever moves less than a millionfold


def decisions(optimizer, layer):
    return [record.decision for record in optimizer.history if record.layer == layer]


class Script(TraceRule):
    """Stops layers as it is told: ``at[candidate]`` holds the indices, counted from the second candidate on."""

    def follow(self, optimizer, *at):
        object.__setattr__(self, "answers", self._answers(optimizer, [(), *at]))

    def _answers(self, optimizer, at):
        for stopping in at:
            for index in optimizer.own_state.active_layers:
                yield (Decision.STOP if index in stopping else Decision.UPDATE), None

    def decide(self, adopted, fresh):
        return next(self.answers)


def scripted(net, *at, **options):
    """(optimizer, step) whose rule follows the script."""
    optimizer, step = make(net, refresh=Script(), **options)
    optimizer.options.refresh.follow(optimizer, *at)
    return optimizer, step


def state(optimizer, prefix):
    return {n: v for n, v in values(optimizer).items() if n.startswith(f"thor.{prefix}.")}


def test_update_then_keep_leaves_the_inverse_and_stop_leaves_everything():
    rules = iter([TraceRule.thor_nt(), TraceRule.thor(), TraceRule.thor_stop(), TraceRule.thor_nt()])
    optimizer, step = make(Mlp(), lr=0.0, refresh=next(rules))
    x, y = batch()
    step(x, y)
    first = state(optimizer, "layers.0")
    for rule in rules:  # the same batch, unmoved weights: the trace does not change
        object.__setattr__(optimizer.options, "refresh", rule)
        step(x, y)
    assert decisions(optimizer, "layers.0") == [Decision.UPDATE, Decision.KEEP, Decision.STOP]
    assert [r.change for r in optimizer.history[::2]] == [None, 0.0, 0.0]
    assert [(r.status, r.refreshes, r.kept) for r in optimizer.layers] == [("stopped", 1, 1)] * 2
    for name, value in state(optimizer, "layers.0").items():
        np.testing.assert_allclose(value, first[name], rtol=1e-6)


def test_an_update_replaces_factor_trace_and_inverse():
    optimizer, step = make(Mlp(), lr=0.0)
    step(*batch(seed=1))
    inverse, traces = optimizer.inverses("layers.0")[0], optimizer.own_state.traces.asnumpy().copy()
    step(*batch(seed=2))
    assert (optimizer.inverses("layers.0")[0] != inverse).any()
    assert (optimizer.own_state.traces.asnumpy() != traces).all()


def test_keep_holds_the_inverse_while_the_estimate_goes_on():
    optimizer, step = make(Mlp(), lr=0.0, refresh=TraceRule(update=1e6, stop=0.0))
    step(*batch(seed=1))
    (a, _), (a_inverse, _) = optimizer.factors("layers.0"), optimizer.inverses("layers.0")
    traces = optimizer.own_state.traces.asnumpy().copy()
    step(*batch(seed=2))
    assert decisions(optimizer, "layers.0") == [Decision.UPDATE, Decision.KEEP]
    assert (optimizer.factors("layers.0")[0] != a).any()
    np.testing.assert_array_equal(optimizer.inverses("layers.0")[0], a_inverse)
    np.testing.assert_array_equal(optimizer.own_state.traces.asnumpy(), traces)  # of the adopted factor


def test_the_history_and_the_presets_agree_with_the_rule_as_a_pure_function():
    rule = TraceRule(update=0.3, stop=0.05)
    optimizer, step = make(Mlp(), refresh=rule, factor_decay=0.9)
    for seed in range(8):
        step(*batch(seed=seed))
    for layer in ("layers.0", "layers.1"):
        adopted = None
        for record in (r for r in optimizer.history if r.layer == layer):
            decision, change = rule.decide(adopted, record.trace)  # damping is constant: traces compare as they are
            assert record.decision is decision
            assert change is None or record.change == pytest.approx(change, rel=1e-4)
            adopted = record.trace if decision is Decision.UPDATE else adopted


def test_no_layer_is_tested_before_the_start_of_the_rule():
    optimizer, step = make(Mlp(), refresh=TraceRule(update=1e6, stop=1e6, start=3))
    for seed in range(5):
        step(*batch(seed=seed))
    assert decisions(optimizer, "layers.0") == [Decision.UPDATE] * 3 + [Decision.STOP]


@pytest.mark.parametrize("jit", [False, True])
def test_when_every_layer_has_stopped_only_plain_steps_are_left(jit):
    optimizer, step = make(Mlp(), refresh=STOP_NEXT, jit=jit)
    x, y = batch()
    step(x, y)
    assert optimizer.own_state.gathers_now
    step(x, y)
    assert [r.status for r in optimizer.layers] == ["stopped"] * 2
    assert not optimizer.own_state.gathers_now and not optimizer.own_state.refreshes_now
    before, history = state(optimizer, "layers.0") | state(optimizer, "layers.1"), len(optimizer.history)
    weights = values(step.network)
    step(x, y)
    after = state(optimizer, "layers.0") | state(optimizer, "layers.1")
    assert all((after[name] == value).all() for name, value in before.items())
    assert len(optimizer.history) == history and step.compilations == 1
    assert all((values(step.network)[name] != value).any() for name, value in weights.items())  # it still trains


def test_a_stopped_layer_leaves_the_curvature_step_and_the_others_go_on():
    dense = 2
    optimizer, step = scripted(Mixed(), {dense}, (), ())
    step(*images(seed=1))
    step(*images(seed=2))
    assert [r.status for r in optimizer.layers] == ["active", "active", "stopped"]
    assert step.compilations == 1
    frozen = state(optimizer, "dense")
    for seed in (3, 4):
        step(*images(seed=seed))
        assert step.compilations == 2  # its cost is most of the network's
        assert dense not in step.step_graphs.in_graph
        assert all((value == frozen[name]).all() for name, value in state(optimizer, "dense").items())
    assert [r.refreshes for r in optimizer.layers] == [4, 4, 1]
    assert [r.step for r in optimizer.history if r.layer == "dense"] == [0, 1]


def test_a_small_layer_that_stops_is_not_worth_a_recompilation_but_stays_as_it_is():
    conv = 0
    optimizer, step = scripted(Mixed(), {conv}, ())
    step(*images(seed=1))
    step(*images(seed=2))
    frozen = state(optimizer, "conv")
    step(*images(seed=3))
    assert step.compilations == 1 and conv in step.step_graphs.in_graph
    assert all((value == frozen[name]).all() for name, value in state(optimizer, "conv").items())
    assert [r.refreshes for r in optimizer.layers] == [1, 3, 3]


@pytest.mark.parametrize(("accumulate", "count"), [(1, 6), (2, 3)])
def test_a_run_recompiles_a_small_number_of_times_at_most(accumulate, count):
    """Equal layers that stop one by one. Of six, only after every second one has a quarter of the cost stopped."""
    net = nn.SequentialCell(*[nn.Dense(3, 3) for _ in range(count)])
    optimizer, step = scripted(net, *({index} for index in range(count)), accumulate=accumulate)
    x, y = batch(inputs=3, outputs=3)
    for _ in range((count + 2) * accumulate):
        step(x, y)
    graphs = 1 if accumulate == 1 else 2  # adding a micro-batch up, and finishing the step
    assert step.compilations == 3 * graphs <= graphs / RECOMPILE_SHARE  # the last to stop end the curvature step itself
    assert [r.refreshes for r in optimizer.layers] == list(range(1, count + 1))


def test_a_stopped_layers_last_inverse_keeps_preconditioning():
    net = Mlp()
    optimizer, step = make(net, lr=1e-3, refresh=STOP_NEXT, split="block")
    x, y = batch()
    step(x, y)
    step(x, y)
    assert [r.status for r in optimizer.layers] == ["stopped"] * 2
    before = values(net)
    step(x, y)
    moved = before["layers.1.weight"] - values(net)["layers.1.weight"]
    assert np.abs(moved).max() > 0
    thor.detach(net)
    for name, value in before.items():
        next(p for p in net.get_parameters() if p.name == name).set_data(Tensor(value))
    a, g = optimizer.inverses("layers.1")
    wanted = 1e-3 * g @ matrix(gradients(net, squared_error, x, y), "layers.1") @ a
    np.testing.assert_allclose(moved, wanted[:, :-1], rtol=2e-2, atol=1e-6)
