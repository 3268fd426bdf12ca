"""Factors from a share of the examples: those of that part of the batch, as if it had been the whole."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from tests.support.networks import Mlp, batch, fill, make
from thor.factors import formulas

COUNT, KEPT = 8, 2


class Convolutions(nn.Cell):
    """A grouped convolution, a plain one and a Dense; no BatchNorm, so that examples do not see each other."""

    def __init__(self):
        super().__init__()
        self.grouped = nn.Conv2d(2, 4, 3, stride=2, group=2, has_bias=True)
        self.conv = nn.Conv2d(4, 3, (1, 2), pad_mode="valid")
        self.relu, self.flatten = nn.ReLU(), nn.Flatten()
        self.dense = nn.Dense(3 * 3 * 2, 3)
        fill(self, 0)

    def construct(self, x):
        return self.dense(self.flatten(self.conv(self.relu(self.grouped(x)))))


class Words(nn.Cell):
    """An embedding, and a Dense over three words each: rows of one example lie together."""

    def __init__(self):
        super().__init__()
        self.table, self.dense, self.tanh = nn.Embedding(7, 4), nn.Dense(4, 3), nn.Tanh()
        fill(self, 0)

    def construct(self, ids):
        return self.tanh(self.dense(self.table(ids))).mean(1)


def data(net):
    rng = np.random.default_rng(3)
    target = Tensor(rng.standard_normal((COUNT, 3)).astype(np.float32))
    if isinstance(net, Mlp):
        return batch(COUNT)[0], target
    if isinstance(net, Words):
        return Tensor(rng.integers(0, 7, (COUNT, 3)).astype(np.int32)), target
    return Tensor(rng.standard_normal((COUNT, 2, 5, 5)).astype(np.float32)), target


NETWORKS = {"dense": Mlp, "conv": Convolutions, "rows": Words}


@pytest.mark.parametrize("split", ["block", "block+mean", "block+rank"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_share_of_a_batch_gives_the_factors_of_those_examples_alone(name, split):
    """Both see the same per-example losses: the mean over the batch and its 1 / N are undone by N / k."""
    settings = {"split": split, "block_size": 3, "rank": 2, "lr": 0.0}
    parts, whole = NETWORKS[name](), NETWORKS[name]()
    x, y = data(parts)
    shared, step = make(parts, factor_share=KEPT / COUNT, **settings)
    step(x, y)
    alone, step = make(whole, **settings)
    step(x[:KEPT], y[:KEPT])
    for layer in shared.layers:
        of_share, of_part = shared.factors(layer.name), alone.factors(layer.name)
        frequencies = layer.kind == "embedding"  # a diagonal, gathered from all examples
        for found, expected in zip(of_share[frequencies:], of_part[frequencies:], strict=True):
            assert np.abs(expected).max() > 1e-4
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())


def test_frequencies_of_an_embedding_come_from_all_examples():
    net = Words()
    ids, y = data(net)
    optimizer, step = make(net, factor_share=KEPT / COUNT)
    step(ids, y)
    expected = np.bincount(ids.asnumpy().reshape(-1), minlength=7) / ids.size
    np.testing.assert_allclose(optimizer.factors("table")[0], expected, rtol=1e-6)


def test_gradients_and_weights_do_not_depend_on_the_share():
    """With the identity as preconditioner, a step is Momentum's, whatever the factors are gathered from."""
    moved = []
    for share in (1.0, 0.25):
        net = Mlp()
        start = net.layers[0].weight.asnumpy().copy()
        optimizer, step = make(net, factor_share=share, lr=0.05 * 1e12, damping=1e12, clip=None)
        step(*data(net))
        moved.append(net.layers[0].weight.asnumpy() - start)
        assert np.abs(moved[-1]).max() > 1e-3
        assert optimizer.layers[0].refreshes == 1
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-4, atol=1e-7)


def test_over_many_batches_the_mean_is_that_of_all_examples():
    """Unbiased: over all cyclic shifts of one batch, each example is looked at equally often."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((COUNT, 5)).astype(np.float32)
    found = []
    for shift in range(COUNT):
        part, times = formulas.first_examples(Tensor(np.roll(rows, shift, 0)), KEPT / COUNT)
        features, scale, _ = formulas.dense_output(part, COUNT)
        found.append(formulas.block_gram_by_rows(features, scale * times, 5, 1).asnumpy()[0, 0])
    np.testing.assert_allclose(np.mean(found, 0), COUNT * rows.T @ rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("count", "share", "kept"), [(8, 0.25, 2), (8, 0.3, 2), (3, 0.1, 1), (1, 0.5, 1), (4, 1.0, 4)])
def test_how_many_examples_a_share_is(count, share, kept):
    """Rounded down, and at least one."""
    part, times = formulas.first_examples(Tensor(np.zeros((count, 2), np.float32)), share)
    assert part.shape == (kept, 2) and times == pytest.approx(count / kept)


def test_a_compiled_step_gathers_the_same():
    found = []
    for jit in (False, True):
        ms.set_context(mode=ms.GRAPH_MODE if jit else ms.PYNATIVE_MODE)
        net = Convolutions()
        optimizer, step = make(net, jit=jit, factor_share=0.5, block_size=3)
        step(*data(net))
        found.append([m for layer in optimizer.layers for m in optimizer.factors(layer.name)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6 * np.abs(one).max())
