"""Inverses without a damping: it is a share of a layer's own eigenvalues, and a step is as long as the gradient."""

import numpy as np
import pytest
from mindspore import nn, ops

import thor
from tests.support.networks import Mixed, Mlp, batch, gradients, images, squared_error, values

RATE = 0.1


def stepped(net, x, y, scale=1.0, rate=RATE, steps=1, **options):
    """The weights after some steps of plain descent with a loss times ``scale``, and the optimizer."""
    optimizer = thor.THOR(net, rate, momentum=0.0, precondition="inverse", interval=1, factor_decay=0.0, **options)

    def loss(output, target):
        return scale * squared_error(output, target)

    step = thor.TrainStep(net, loss, optimizer)
    for _ in range(steps):
        step(x, y)
    return values(net), optimizer


def test_a_step_is_the_direction_at_the_length_of_the_gradient():
    net, x, y = Mlp(), *batch()
    before = values(net)
    own = gradients(net, squared_error, x, y)
    after, optimizer = stepped(net, x, y)
    for layer in ("layers.0", "layers.1"):
        dw = np.concatenate([own[f"{layer}.weight"], own[f"{layer}.bias"][:, None]], 1)
        a, g = optimizer.inverses(layer)
        direction = g @ dw @ a
        direction *= np.linalg.norm(dw) / np.linalg.norm(direction)
        moved = [(before[f"{layer}.{part}"] - after[f"{layer}.{part}"]) / RATE for part in ("weight", "bias")]
        np.testing.assert_allclose(np.concatenate([moved[0], moved[1][:, None]], 1), direction, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(("network", "data"), [(Mlp, batch), (Mixed, images)])
def test_each_factor_is_damped_by_a_share_of_its_mean_eigenvalue(network, data):
    net = network()
    _, optimizer = stepped(net, *data(), damping=thor.RelativeDamping(0.04), split="block")
    for layer in optimizer.layers:
        for factor, inverse in zip(optimizer.factors(layer.name), optimizer.inverses(layer.name), strict=True):
            stacks = [each.reshape(-1, *each.shape[-2:]).astype(np.float64) for each in (factor, inverse)]
            for one, its_inverse in zip(*stacks, strict=True):
                damped = one + 0.2 * np.trace(one) / len(one) * np.eye(len(one))
                np.testing.assert_allclose(its_inverse @ damped, np.eye(len(one)), atol=2e-3)


def test_a_loss_of_another_scale_takes_the_same_way():
    """Only the rate changes: the step is as long as the gradient, and the damping follows the factors."""
    x, y = batch()
    own, other = Mlp(), Mlp()
    once, _ = stepped(own, x, y, steps=5)
    scaled, _ = stepped(other, x, y, scale=1000.0, rate=RATE / 1000, steps=5)
    for name, value in once.items():
        np.testing.assert_allclose(scaled[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_layer_that_no_gradient_has_reached_takes_no_step_and_later_a_finite_one():
    net, x, y = Mlp(), *batch()
    last = net.layers[1].weight
    ops.assign(last, ops.zeros_like(last))  # no gradient passes
    before = values(net)
    after, _ = stepped(net, x, y)
    assert np.array_equal(after["layers.0.weight"], before["layers.0.weight"])
    net = Mlp()
    ops.assign(net.layers[1].weight, ops.zeros_like(last))
    later, _ = stepped(net, x, y, steps=4)
    assert all(np.isfinite(value).all() for value in later.values())
    assert not np.array_equal(later["layers.0.weight"], before["layers.0.weight"])


@pytest.mark.parametrize("options", [{}, {"damping": 0.1, "interval": thor.GrowingInterval(1, 100, 1.1)}])
def test_candidates_that_are_a_few_steps_apart_stop_no_layer(options):
    """One batch and no rate: no trace changes. The rule would stop each layer at its first test."""
    net = Mlp()
    optimizer = thor.THOR(net, 0.0, precondition="inverse", **options)
    step = thor.TrainStep(net, squared_error, optimizer)
    for _ in range(4):
        step(*batch())
    assert {record.decision.value for record in optimizer.history} == {"update"}
    assert len(optimizer.history) == 8


@pytest.mark.parametrize(
    ("interval", "decay", "start", "first"),
    [
        (None, None, None, 190),  # 1 + 0.1 * 190 is 20, the memory of an average with the decay 0.95
        (thor.GrowingInterval(1, 100, 1.1), 0.9, None, 90),
        (thor.GrowingInterval(1, 100, 1.1), 0.0, None, 0),
        (thor.GrowingInterval(1, 10, 1.5), 0.95, None, 18),  # it never remembers as far: where the interval is longest
        (thor.GrowingInterval(30, 300, 1.5), 0.95, None, 0),
        (1, 0.95, None, 0),
        (lambda step: 1 + step, 0.95, None, 0),
        (thor.GrowingInterval(1, 100, 1.1), 0.95, 7, 7),
        (thor.GrowingInterval(1, 100, 1.1), 0.95, 0, 0),
    ],
)
def test_the_rule_tests_from_where_the_interval_is_as_long_as_the_average_remembers(interval, decay, start, first):
    given = {"interval": interval, "factor_decay": decay, "refresh": thor.TraceRule.thor_stop(start=start)}
    assert thor.THOR(Mlp(), 0.1, precondition="inverse", **given).options.refresh == thor.TraceRule.thor_stop(first)


def test_what_is_left_out_is_chosen_by_the_damping():
    def options(**given):
        return thor.THOR(Mlp(), 0.1, **given).options

    free = options(precondition="inverse")
    assert (free.relative, free.damping(0), free.graft, free.interval(0), free.interval(10**6)) == (
        True, 0.01, True, 1, 100,
    )  # fmt: skip
    limited = options(precondition="inverse", clip=1e-3)
    assert (limited.relative, limited.graft) == (True, False)
    given = options(damping=0.03)
    assert (given.kind, given.relative, given.graft, given.interval(0)) == ("inverse", False, False, 100)
    falling = options(damping=thor.RelativeDamping(lambda step: 0.5 / (1 + step)))
    assert (falling.kind, falling.damping(4), falling.graft, falling.interval(0)) == ("inverse", 0.1, False, 100)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"damping": 0.1, "graft": True, "clip": 1e-3}, ValueError, ("clip", "graft=True", "0.001")),
        ({"damping": 0.1, "graft": 1}, TypeError, ("graft", "1")),
        ({"graft": True}, ValueError, ("graft", "eigenbasis", "length")),
        ({"graft": False}, ValueError, ("graft", "eigenbasis", "length")),
    ],
)
def test_what_contradicts_is_refused(options, error, words):
    with pytest.raises(error) as caught:
        thor.THOR(Mlp(), 0.1, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("share", [0, -0.1, float("nan"), "much"])
def test_a_wrong_share_is_refused(share):
    with pytest.raises((TypeError, ValueError), match="RelativeDamping share must be"):
        thor.RelativeDamping(share)


def test_momentum_and_a_layer_of_one_factor_take_it_too():
    net, x, y = Mixed(), *images()
    optimizer = thor.THOR(net, 0.05, precondition="inverse", norms=True)
    step = thor.TrainStep(net, nn.MSELoss(), optimizer)
    losses = [float(step(x, y)) for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0], losses
