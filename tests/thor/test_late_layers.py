"""Layers whose curvature becomes known later than that of others: frozen, uncalled, or without a gradient."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import thor
from tests.support.networks import Mlp, batch, fill, make, squared_error, values


class Borrowed(nn.Cell):
    """Two layers of one form, of which the network calls the first and multiplies by the weight of the second."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(5, 5), nn.Dense(5, 5)
        fill(self, 0)

    def construct(self, x):
        return ops.matmul(ops.tanh(self.first(x)), self.second.weight.T) + self.second.bias


class Gated(nn.Cell):
    """The second layer's weights are zero, so that the first gets no gradient at first."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(5, 4), nn.Dense(4, 3)
        fill(self, 0)
        self.second.weight.set_data(Tensor(np.zeros((3, 4), np.float32)))

    def construct(self, x):
        return self.second(ops.tanh(self.first(x)))


def moved(net, before, name):
    """How far a weight has moved, entry by entry."""
    return np.abs(values(net)[name] - before[name])


def eigenbasis_step(net, jit, **settings):
    optimizer = thor.THOR(net, 1e-3, **settings)
    return optimizer, thor.TrainStep(net, squared_error, optimizer, jit=jit)


@pytest.mark.parametrize("jit", [False, True])
def test_the_factors_of_a_layer_that_is_unfrozen_late_are_those_of_its_first_batch(jit):
    """A holds the square of the constant 1 that stands for the bias, whenever the layer comes."""
    net = Mlp()
    first = net.layers[0]
    first.weight.requires_grad = first.bias.requires_grad = False
    optimizer, step = make(net, jit=jit, interval=1, factor_decay=0.95, params=list(net.get_parameters()))
    x, y = batch()
    for _ in range(12):
        step(x, y)
    first.weight.requires_grad = first.bias.requires_grad = True
    for _ in range(3):
        step(x, y)
        a, _ = optimizer.factors("layers.0")
        np.testing.assert_allclose(a[-1, -1], 1.0, rtol=1e-5)
    inputs = np.concatenate([x.asnumpy(), np.ones((len(x), 1))], axis=1)
    np.testing.assert_allclose(a, inputs.T @ inputs / len(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_a_layer_without_a_basis_takes_adams_plain_step(jit):
    """The first step of Adam is as long as the learning rate in each entry."""
    net, (x, y) = Borrowed(), batch(outputs=5)
    before = values(net)
    _, step = eigenbasis_step(net, jit)
    step(x, y)
    np.testing.assert_allclose(moved(net, before, "second.weight"), 1e-3, rtol=1e-3)
    of_first = np.linalg.norm(moved(net, before, "first.weight"))
    assert of_first > 2 * np.linalg.norm(moved(net, before, "second.weight"))  # in its basis, at rate_factor x the rate


@pytest.mark.parametrize("jit", [False, True])
def test_a_layer_that_is_unfrozen_takes_adams_plain_step_until_it_has_a_basis(jit):
    net, (x, y) = Mlp(), batch()
    first = net.layers[0]
    first.weight.requires_grad = first.bias.requires_grad = False
    optimizer, step = eigenbasis_step(net, jit, interval=4, params=list(net.get_parameters()))
    step(x, y)
    first.weight.requires_grad = first.bias.requires_grad = True
    lengths = []
    for _ in range(4):
        before = values(net)
        step(x, y)
        lengths.append(moved(net, before, "layers.0.weight").max())
    assert max(lengths[:3]) < 2e-3 < lengths[3]  # it has a basis from the second candidate on
    assert [layer.refreshes for layer in optimizer.layers] == [1, 2]


@pytest.mark.parametrize("notices_first", [False, True])
def test_a_load_from_before_a_layers_first_basis_brings_its_rate_back(notices_first):
    """Also where another step of the same optimizer is the first to notice the load. The layers' bases are stacked."""
    net, (x, y) = Mlp((5, 5, 5)), batch(outputs=5)
    first = net.layers[0]
    first.weight.requires_grad = first.bias.requires_grad = False
    optimizer = thor.THOR(net, 1e-3, interval=4, params=list(net.get_parameters()))
    step, other = (thor.TrainStep(net, squared_error, optimizer) for _ in range(2))
    step(x, y)
    other(x, y)
    first.weight.requires_grad = first.bias.requires_grad = True
    kept, weights = {name: Parameter(value) for name, value in values(optimizer).items()}, values(net)
    found = []
    for _ in range(2):
        optimizer.load(kept)
        for parameter in net.get_parameters():
            parameter.set_data(Tensor(weights[parameter.name]))
        for each in ([other] if notices_first else []) + [step]:
            each(x, y)
        found.append(values(net))
        for _ in range(4):
            step(x, y)
        assert optimizer.layers[0].refreshes == 1
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


@pytest.mark.parametrize("jit", [False, True])
def test_a_layer_that_got_no_gradient_at_the_last_candidate_moves(jit):
    net, (x, y) = Gated(), batch()
    before = values(net)
    _, step = eigenbasis_step(net, jit, interval=500)
    for _ in range(3):
        step(x, y)
    assert moved(net, before, "first.weight").max() > 1e-4


@pytest.mark.parametrize("jit", [False, True])
def test_a_batch_norm_gathers_nothing_while_it_normalises_with_its_moving_statistics(jit):
    net = nn.SequentialCell(nn.Dense(5, 4), nn.BatchNorm1d(4), nn.Dense(4, 3))
    fill(net, 0)
    optimizer, step = make(net, jit=jit, norms=True)
    norm, (x, y) = net[1], batch(16)
    norm.set_train(False)
    step(x, y)
    refreshes = {layer.name: layer.refreshes for layer in optimizer.layers}
    assert refreshes == {"0": 1, "1.gamma": 0, "1.beta": 0, "2": 1}
    norm.set_train()
    step(x, y)
    assert {layer.name: layer.refreshes for layer in optimizer.layers} == {"0": 2, "1.gamma": 1, "1.beta": 1, "2": 2}
