"""A layer that the network never calls: nothing is known of its factors, so its weights take the plain gradient."""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import thor
from tests.support.networks import fill, gradients, make, squared_error, values
from thor import Decision


class Borrowed(nn.Cell):
    """The network multiplies by its head's weight itself."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Dense(5, 4), nn.Dense(4, 3)
        self.calls_head = False
        fill(self, 0)

    def construct(self, x):
        h = ops.tanh(self.first(x))
        if self.calls_head:
            return self.head(h)
        return ops.matmul(h, self.head.weight.T) + self.head.bias


def data(seed=1):
    rng = np.random.default_rng(seed)
    return Tensor(rng.standard_normal((6, 5)).astype(np.float32)), Tensor(
        rng.standard_normal((6, 3)).astype(np.float32)
    )


@pytest.mark.parametrize("jit", [False, True])
def test_it_takes_the_plain_gradient_and_never_stops(jit, caplog):
    net, (x, y) = Borrowed(), data()
    optimizer, step = make(net, lr=0.1, damping=1e-3, jit=jit, refresh=thor.TraceRule.thor_stop())
    for _ in range(3):
        plain = gradients(net, squared_error, x, y)
        before = values(net)
        with caplog.at_level("WARNING", logger="thor"):
            step(x, y)
        for name in ("head.weight", "head.bias"):
            np.testing.assert_allclose(values(net)[name], before[name] - 0.1 * plain[name], rtol=1e-4, atol=1e-6)
        assert not np.allclose(values(net)["first.weight"], before["first.weight"] - 0.1 * plain["first.weight"])
    assert {record.layer for record in optimizer.history} == {"first"}
    assert next(r for r in optimizer.layers if r.name == "head").status == "active"
    assert caplog.text.count("the network has not called layer head so far") == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("split", ["block", "block+mean"])
def test_its_factors_are_zero_where_they_are_cut_too(split):
    net, (x, y) = Borrowed(), data()
    optimizer, step = make(net, block_size=2, split=split)
    step(x, y)
    assert not any(factor.any() for factor in optimizer.factors("head"))


def test_once_it_is_called_its_factors_are_adopted():
    net, (x, y) = Borrowed(), data()
    optimizer, step = make(net, refresh=thor.TraceRule.thor_stop())
    step(x, y)
    net.calls_head = True
    step(x, y)
    record = optimizer.history[-1]
    assert (record.layer, record.decision, record.change) == ("head", Decision.UPDATE, None)
    a, g = optimizer.factors("head")
    assert np.trace(a) > 1.0 and np.trace(g) > 0.0


def test_it_stays_active_where_all_others_have_stopped_and_refreshes_once_it_is_called():
    net, (x, y) = Borrowed(), data()
    optimizer, step = make(net, lr=0.0, refresh=thor.TraceRule(update=0.1, stop=0.05))
    for _ in range(3):
        step(x, y)
    assert {layer.name: layer.status for layer in optimizer.layers} == {"first": "stopped", "head": "active"}
    net.calls_head = True
    step(x, y)
    assert {layer.name: layer.refreshes for layer in optimizer.layers} == {"first": 1, "head": 1}


def test_a_gradient_of_zero_stops_no_layer():
    """The first gradients come late: a layer behind a gate that is shut at first."""
    net, (x, y) = Borrowed(), data()
    optimizer, step = make(net, lr=0.0, refresh=thor.TraceRule.thor_stop())
    net.calls_head = True
    for _ in range(3):
        step(x, net(x))  # the output is the target: the loss has no gradient
    assert {layer.status for layer in optimizer.layers} == {"active"}
    step(x, y)
    assert {layer.refreshes for layer in optimizer.layers} == {2}


def test_a_layer_that_is_called_no_more_keeps_its_last_inverse():
    """Its factors fade to nothing, and inverses of nothing would divide by the damping."""
    net, (x, y) = Borrowed(), data()
    net.calls_head = True
    optimizer, step = make(net, damping=1e-3, factor_decay=0.5)
    step(x, y)
    net.calls_head = False
    for _ in range(12):
        step(x, y)
    head = next(layer for layer in optimizer.layers if layer.name == "head")
    assert 1 < head.refreshes < 12
    last = optimizer.inverses("head")
    step(x, y)
    for now, before in zip(optimizer.inverses("head"), last, strict=True):
        np.testing.assert_array_equal(now, before)
