"""Decoupled decay reaches every weight that it is meant for, once, whatever moves the weights and however grouped."""

import numpy as np
import pytest
from mindspore import nn

import first_order
from tests.support.networks import Mixed, Mlp, batch, images, make, values
from thor import THOR

RATE, DECOUPLED = 0.1, {"weight_decay_mode": "decoupled"}


def groups(net, first, second):
    """A group a layer, each with the settings given."""
    return [{"params": net.layers[k].trainable_params()} | more for k, more in enumerate((first, second))]


@pytest.mark.parametrize(
    ("thors", "first", "second", "shrinks"),
    [
        (0.5, {}, {}, (0.05, 0.05)),
        (0.5, {"weight_decay": 0.25}, {}, (0.025, 0.05)),
        (0.5, {"weight_decay": 0.0}, {"lr": 0.2}, (0.0, 0.1)),
        (0.0, {"weight_decay": 0.5}, {}, (0.05, 0.0)),
    ],
    ids=["THOR's", "one has its own", "none, and own rate", "groups alone"],
)
def test_a_group_decays_by_its_own_value_or_by_thors_apart_from_momentum(thors, first, second, shrinks):
    plain_net, net = Mlp(), Mlp()
    before, (x, y) = values(net), batch()
    rates = [{name: value for name, value in more.items() if name == "lr"} for more in (first, second)]
    plain, step = make(plain_net, lr=RATE, momentum=0.9, params=groups(plain_net, *rates))
    step(x, y)
    params = [*groups(net, first, second), {"order_params": net.trainable_params()[::-1]}]
    settings = {"momentum": 0.9, "weight_decay": thors, "params": iter(params)} | DECOUPLED
    optimizer, step = make(net, lr=RATE, jit=True, **settings)
    step(x, y)
    for name, value in values(net).items():
        shrunk = shrinks[int(name.split(".")[1])] * before[name]
        np.testing.assert_allclose(value, values(plain_net)[name] - shrunk, rtol=1e-5, atol=1e-6)
        moment = f"moments.{name}"
        np.testing.assert_allclose(values(optimizer)[moment], values(plain)[moment], rtol=1e-5, atol=1e-6)


INNERS = {
    "Momentum": lambda p: nn.Momentum(p, RATE, 0.9),
    "groups": lambda p: nn.Momentum([{"params": p[:2]}, {"params": p[2:]}], RATE, 0.9),
    "Adafactor": lambda p: first_order.Adafactor(p, RATE),
}


@pytest.mark.parametrize("kind", INNERS)
def test_beside_an_inner_optimizer_all_decay_but_what_is_named_beta_or_gamma(kind):
    """Adafactor's step is as long as the weight it moves, so that half a weight makes half a step."""
    plain_net, net = Mixed(), Mixed()
    before, (x, y) = values(net), images()
    make(plain_net, lr=None, inner=INNERS[kind](plain_net.trainable_params()))[1](x, y)
    make(net, lr=None, inner=INNERS[kind](net.trainable_params()), weight_decay=0.5 / RATE, **DECOUPLED)[1](x, y)
    for name in (p.name for p in net.trainable_params()):
        plain = values(plain_net)[name]
        decayed = 0.5 * plain if kind == "Adafactor" else plain - 0.5 * before[name]
        wanted = plain if name in ("norm.gamma", "norm.beta") else decayed
        np.testing.assert_allclose(values(net)[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "make_inner",
    [
        lambda p: nn.Adam(p, RATE, weight_decay=0.1),
        lambda p: nn.Adam([{"params": p[:2], "weight_decay": 0.1}, {"params": p[2:]}], RATE),
        lambda p: first_order.Adafactor(p, RATE, weight_decay=0.1),
        lambda p: first_order.Muon(p, RATE),
    ],
    ids=["for all", "of a group", "Adafactor", "Muon"],
)
def test_an_inner_optimizer_that_decays_weights_itself_is_refused(make_inner):
    net = Mlp()
    inner = make_inner(net.trainable_params())
    with pytest.raises(ValueError, match=f"no weight_decay of its own.* got {type(inner).__name__} with one.*=0.5"):
        THOR(net, None, 0.1, weight_decay=0.5, inner=inner, **DECOUPLED)


@pytest.mark.parametrize(("wrong", "error"), [(-0.1, ValueError), (nn.ExponentialDecayLR(0.1, 0.9, 4), TypeError)])
def test_a_groups_decay_must_be_a_number_from_0(wrong, error):
    net = Mlp()
    with pytest.raises(error, match=r"weight_decay of params\[1\] must be .*, but got "):
        THOR(net, RATE, 0.1, params=groups(net, {}, {"weight_decay": wrong}), **DECOUPLED)
