"""The optimizer inside THOR: whichever weights and options it has, now or later."""

import numpy as np
import pytest
from mindspore import nn

import first_order
import thor
from tests.support.networks import Mlp, batch, make, squared_error, values


def steps(step, count):
    return [float(step(*batch(seed=seed)).asnumpy()) for seed in range(count)]


@pytest.mark.parametrize("mode", ["coupled", "decoupled"])
def test_parameter_groups_may_be_iterators(mode):
    def split(net, kind):
        weights = net.trainable_params()
        return [{"params": kind(weights[:2]), "weight_decay": 0.1}, {"params": kind(weights[2:])}]

    ours, theirs = Mlp(), Mlp()
    optimizer, step = make(ours, params=iter(split(ours, iter)), weight_decay_mode=mode)
    _, other = make(theirs, params=split(theirs, list), weight_decay_mode=mode)
    assert len(optimizer.inner.parameters) == 4
    assert steps(step, 4) == steps(other, 4)


@pytest.mark.parametrize("jit", [True, False])
def test_options_that_adafactor_is_given_between_steps_are_taken(jit):
    def final(decay):
        net = Mlp()
        inner = first_order.Adafactor(net.trainable_params(), 0.01)
        _, step = make(net, lr=None, inner=inner, jit=jit)
        steps(step, 2)
        inner.param_groups[0]["weight_decay"] = decay
        steps(step, 2)
        return values(net)

    kept, decayed = final(0.0), final(50.0)
    for name, value in decayed.items():
        assert np.abs(value).sum() < 0.8 * np.abs(kept[name]).sum(), name


def test_parameters_that_inner_is_given_later_are_refused():
    net, more = Mlp(), nn.Dense(2, 2)
    inner = first_order.Adafactor(net.trainable_params(), 0.01)
    _, step = make(net, lr=None, inner=inner)
    steps(step, 1)
    inner.add_param_group({"params": [more.weight]})
    with pytest.raises(ValueError, match="inner was given more Parameters since THOR was made of it"):
        step(*batch())


def test_soap_is_refused():
    net = Mlp()
    with pytest.raises(ValueError, match="inner must not be a SOAP, .* Train by SOAP alone"):
        thor.THOR(net, None, 0.1, inner=first_order.SOAP(net.trainable_params(), 0.01))


def test_nor_before_the_step_is_made():
    net, more = Mlp(), nn.Dense(2, 2)
    inner = first_order.Adafactor(net.trainable_params(), 0.01)
    optimizer = thor.THOR(net, None, 0.1, inner=inner)
    inner.add_param_group({"params": [more.weight]})
    with pytest.raises(ValueError, match="inner was given more Parameters since THOR was made of it"):
        thor.TrainStep(net, squared_error, optimizer)


@pytest.mark.parametrize("rate", [np.float32(0.25), np.int64(1)], ids=["float", "int"])
def test_a_number_of_numpy_is_a_learning_rate(rate):
    assert float(thor.THOR(Mlp(), rate).learning_rate.asnumpy()) == rate
