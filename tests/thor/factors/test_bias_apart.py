"""A bias beside the blocks: "block+mean" takes out all that couples it, so nothing is lost with it."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor, nn

from tests.support import reference
from tests.support.networks import Mixed, Mlp, batch, fill, images, make, never, values
from tests.thor.curvature.test_inverter import METHODS, refresh, second_moment, tensor
from thor.curvature.direction import Direction, Form
from thor.curvature.factor import Factor
from thor.factors.blocks import BlockPlan, Cut
from thor.factors.statistics import statistics_of


def with_bias(seed=0, inputs=9, count=40):
    """Correlated rows with a mean far from zero, and the bias's 1 behind them."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((count, inputs)) @ rng.standard_normal((inputs, inputs)) / 3
    return reference.with_ones(mixed + np.linspace(-1, 2, inputs))


def gathered(x, size, across=0):
    """A factor that has seen the rows once, by the functions that training uses."""
    made = Factor("layer.a", BlockPlan(block_size=size).cut(x.shape[1], bias=True, across=across), 1)
    cut = made.cut
    blocks, beside, _ = statistics_of(cut, 1.0, "dense_input")(tensor(x[:, :-1]), None, made.probe)
    made.blocks.set_data(blocks)
    made.beside.set_data(beside)
    return made


@given(st.integers(2, 5000), st.integers(1, 600))
def test_a_cut_with_the_bias_apart_covers_the_inputs(dim, block_size):
    cut = BlockPlan(block_size=block_size).cut(dim, bias=True)
    assert cut.bias_apart == (dim > block_size)
    assert cut.padded >= dim - cut.bias_apart
    assert cut.size <= block_size
    assert len(cut.kept) == len(set(cut.kept)) == dim
    assert max(cut.kept) < cut.thin


def test_inputs_that_divide_evenly_need_no_padding():
    assert BlockPlan().cut(785, bias=True) == Cut(785, 112, 7, "block+mean", 1, bias_apart=True)
    assert BlockPlan().cut(129, bias=True) == Cut(129, 128, 1, "block+mean", 1, bias_apart=True)
    for split in ("block", "block+rank"):
        assert not BlockPlan(split=split).cut(785, bias=True).bias_apart


@pytest.mark.parametrize("across", [0, 1], ids=["in blocks", "whole"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [2, 3, 4, 9])  # 9 inputs in 5 blocks of 2, 3 of 3, 3 of 3, 1 of 9
def test_factor_and_inverse_equal_their_dense_construction(size, method, across):
    x = with_bias()
    made = gathered(x, size, across)
    assert made.cut.whole_inverse == (across > 0 and size > 2)
    blocks, beside = reference.with_mean_and_bias(second_moment(x), x.mean(0), made.cut.size)
    np.testing.assert_allclose(made.dense()[0], blocks + beside, rtol=1e-4, atol=1e-4)
    refresh(made, damping=0.2, method=method)
    wanted = reference.damped_inverse(blocks + beside, 0.2)
    np.testing.assert_allclose(made.dense_inverse()[0], wanted, rtol=1e-3, atol=1e-4)


def test_the_bias_is_not_coupled_to_what_remains():
    """The reason for it: A - u u^T has a zero row."""
    x = with_bias()
    np.testing.assert_allclose((second_moment(x) - np.outer(x.mean(0), x.mean(0)))[-1], 0, atol=1e-12)


def test_one_block_of_all_inputs_loses_nothing():
    x = with_bias()
    made = gathered(x, 9)
    np.testing.assert_allclose(made.dense()[0], second_moment(x), rtol=1e-4, atol=1e-4)


def test_the_trace_has_the_biass_share():
    x = with_bias()
    made = gathered(x, 4)
    np.testing.assert_allclose(made.traces(), [np.trace(second_moment(x))], rtol=1e-5)


@pytest.mark.parametrize("split_rows", [False, True], ids=["G whole", "G cut"])
@pytest.mark.parametrize("copies", [1, 3])
def test_preconditioning_equals_the_explicit_kronecker_product(copies, split_rows):
    rng = np.random.default_rng(7)
    outputs, inputs = 4, 6

    def symmetric(count, size):
        blocks = rng.standard_normal((copies, count, size, size))
        return blocks + blocks.transpose(0, 1, 3, 2)

    a, g = symmetric(2, 3), symmetric(2, 2) if split_rows else symmetric(1, 4)
    s, t = rng.standard_normal((copies, inputs, 1)), rng.standard_normal((copies, 2, inputs))
    bias_inverse = rng.standard_normal((copies, 2, 1))
    g_s, g_t = rng.standard_normal((copies, outputs, 1)), rng.standard_normal((copies, 1, outputs))
    if not split_rows:
        g_s, g_t = np.zeros((2, 1))
    x, b = rng.standard_normal((copies, outputs, inputs)), rng.standard_normal((copies, outputs, 1))
    parts = (x, b, a, s, t, bias_inverse, g, g_s, g_t)
    weight_part, bias_part, *caches = (Tensor(p.astype(np.float32)) for p in parts)
    caches = [*caches[:3], *caches[4:], caches[3]]  # A's of the bias comes last
    shapes = [tuple(p.shape) for p in caches]
    form = Form((copies * outputs, inputs), ms.float32, True, copies, 1, (*shapes[:3], shapes[6]), tuple(shapes[3:6]))
    y, z = Direction(form)((weight_part, bias_part), caches)
    y = y.reshape(x.shape)
    for k in range(copies):
        right = np.zeros((inputs + 1, inputs + 1))
        right[:3, :3], right[3:6, 3:6] = a[k, 0], a[k, 1]
        right[:6, :6] -= s[k] @ t[k, :1]
        right[:6, 6], right[6, :6], right[6, 6] = s[k, :, 0] * bias_inverse[k, 0], -t[k, 1], bias_inverse[k, 1, 0]
        left = g[k, 0]
        if split_rows:
            left = np.kron([[1, 0], [0, 0]], g[k, 0]) + np.kron([[0, 0], [0, 1]], g[k, 1])
            left = left - g_s[k] @ g_t[k]
        wanted = reference.kron_direction(np.concatenate([x[k], b[k]], 1), right.T, left)
        np.testing.assert_allclose(np.concatenate([y[k].asnumpy(), z[k].asnumpy()], 1), wanted, rtol=1e-4, atol=1e-3)


class Twice(nn.Cell):
    """One layer used twice in a pass."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(5, 5)
        self.last = nn.Dense(5, 3)
        fill(self, 0)

    def construct(self, x):
        return self.last(self.dense(self.dense(x)))


NETWORKS = {  # first layers, whose inputs fit one block
    "dense": (Mlp, batch, "layers.0", 5),
    "grouped convolution": (Mixed, images, "conv", 6),
    "used twice": (Twice, batch, "dense", 5),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_training_with_all_inputs_in_one_block_equals_whole_factors(name, inverses):
    """Step by step, with averages, traces and all: 5 inputs and a bias in a block of 5 against a block of 6."""
    make_net, make_batch, layer, size = NETWORKS[name]
    settings = {"interval": 2, "factor_interval": 1, "factor_decay": 0.9}
    found = []
    for block_size in (size, 100):
        net = make_net()
        layers = {f"^{layer}$": (block_size, 100)}
        optimizer, step = make(net, jit=True, block_size=BlockPlan(layers=layers), **settings)
        for seed in range(3):
            step(*make_batch(seed=seed))
        found.append((optimizer, values(net), optimizer.own_state.traces.asnumpy(), optimizer.factors(layer)[0]))
    (apart, weights, traces, factor), (whole, other_weights, other_traces, other_factor) = found
    assert apart.captured[0].a.cut.bias_apart and not whole.captured[0].a.cut.bias_apart
    assert apart.captured[0].a.cut.whole_inverse == (inverses == "whole")
    np.testing.assert_allclose(traces, other_traces, rtol=1e-3)
    np.testing.assert_allclose(factor, other_factor, rtol=1e-3, atol=1e-3)
    for key, value in weights.items():
        np.testing.assert_allclose(value, other_weights[key], rtol=2e-3, atol=2e-4, err_msg=key)


def test_an_identity_leaves_the_gradient_as_it_is(inverses):
    """Before the first refresh, the bias's inverse is one too."""
    net, plain = Mlp(), Mlp()
    optimizer, step = make(net, block_size=2)
    never(optimizer)
    momentum = nn.Momentum(plain.trainable_params(), 0.05, 0.0)
    plain_step = nn.TrainOneStepCell(nn.WithLossCell(plain, nn.MSELoss()), momentum)
    x, y = batch()
    step(x, y)
    assert optimizer.captured[0].a.cut.bias_apart
    # squared_error sums over three outputs where MSELoss takes their mean
    momentum.learning_rate.set_data(Tensor(np.float32(0.15)))
    plain_step(x, y)
    for key, value in values(net).items():
        np.testing.assert_allclose(value, values(plain)[key], rtol=1e-5, atol=1e-6, err_msg=key)
