"""Whole factors, means and gradients against NumPy, and a network that is left as it was.

Tolerances: sums of some dozen float32 products, relative to the largest entry.
"""

import gc
import weakref

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import thor
from tests.support import reference
from tests.support.networks import Mixed, Mlp, batch, fill, gradients, images, matrix, squared_error, values
from thor.capture.targets import find_targets
from thor.profile import gather
from thor.runtime import convolution


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def stream(*batches):
    return lambda: iter(batches)


def collect(net, batches, loss_fn=squared_error, targets=None):
    return gather.gather(net, gather.loss_of(net, loss_fn), stream(*batches), targets or find_targets(net)[0])


@pytest.mark.parametrize(("has_bias", "mode"), [(True, ms.GRAPH_MODE), (False, ms.PYNATIVE_MODE)])
def test_dense_layers_averaged_over_batches(has_bias, mode):
    ms.set_context(mode=mode)
    net, batches = Mlp(has_bias=has_bias), [batch(seed=1), batch(seed=2, count=9)]
    found = collect(net, batches)
    weights = [cell.weight.asnumpy() for cell in net.layers]
    biases = [cell.bias.asnumpy() if has_bias else None for cell in net.layers]
    passes = [reference.mlp_pass(weights, biases, x.asnumpy(), y.asnumpy())[1:] for x, y in batches]
    grads = [gradients(net, squared_error, *each) for each in batches]
    for k, layer in enumerate(found):
        pairs = [reference.dense_factors(inputs[k], outputs[k], has_bias) for inputs, outputs in passes]
        near(layer.a, [sum(a for a, _ in pairs) / 2])
        near(layer.g, [sum(g for _, g in pairs) / 2])
        rows = [reference.with_ones(inputs[k]) if has_bias else inputs[k] for inputs, _ in passes]
        near(layer.mean_a, [sum(row.mean(0) for row in rows) / 2])
        near(layer.mean_g, [sum(outputs[k].sum(0) for _, outputs in passes) / 2])  # sqrt(N) times sqrt(N) g's mean
        near(layer.gradient, [sum(matrix(grad, f"layers.{k}") for grad in grads) / 2])
        assert (layer.name, layer.kind, layer.positions) == (f"layers.{k}", "dense", 1)
        assert [(s.name, s.dim, s.copies) for s in layer.shapes] == [
            (f"layers.{k}.a", weights[k].shape[1] + has_bias, 1), (f"layers.{k}.g", weights[k].shape[0], 1)
        ]  # fmt: skip


class Convolution(nn.Cell):
    """One convolution whose output is the network's."""

    def __init__(self, group, has_bias):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, (3, 2), (2, 1), pad_mode="pad", padding=(1, 0, 0, 1), group=group,
                              has_bias=has_bias)  # fmt: skip
        fill(self, 0)

    def construct(self, x):
        return self.conv(x)


@pytest.mark.parametrize(
    ("group", "has_bias", "path"), [(1, True, "native"), (2, False, "native"), (2, True, "patches")]
)
def test_a_convolution_group_by_group(group, has_bias, path, monkeypatch):
    monkeypatch.setenv("THOR_CONVOLUTION", path)
    rng = np.random.default_rng(0)
    net = Convolution(group, has_bias)
    x = rng.standard_normal((3, 4, 5, 4)).astype(np.float32) + 0.3
    seen = reference.patches(x, (3, 2), (2, 1), (1, 1), (1, 0, 0, 1))
    y = rng.standard_normal((3, 6, seen.shape[1], seen.shape[2])).astype(np.float32)
    half = lambda output, target: ((output - target) ** 2).sum() / (2 * 3)  # noqa: E731
    (layer,) = collect(net, [(Tensor(x), Tensor(y))], half)
    output = reference.convolve(seen, net.conv.weight.asnumpy(), group)
    output += net.conv.bias.asnumpy().reshape(1, -1, 1, 1) if has_bias else 0
    g = (output - y) / 3
    assert (layer.kind, layer.positions, layer.a.shape[0]) == ("conv", 6, group)
    batch_size, positions, channels = 3, seen.shape[1] * seen.shape[2], 4 // group
    grads = gradients(net, half, Tensor(x), Tensor(y))
    for k, (a, gg) in enumerate(reference.conv_factors(seen, g, group, has_bias)):
        near(layer.a[k], a)
        near(layer.g[k], gg)
        rows = seen[:, :, :, k * channels : (k + 1) * channels].reshape(batch_size * positions, -1)
        rows = reference.with_ones(rows) if has_bias else rows
        near(layer.mean_a[k], np.sqrt(positions) * rows.mean(0))  # A sums over positions
        outs = 6 // group
        columns = g[:, k * outs : (k + 1) * outs].transpose(0, 2, 3, 1).reshape(-1, outs)
        near(layer.mean_g[k], batch_size * columns.mean(0))  # G = B^2 times the mean of g g^T
        near(layer.gradient[k], np.split(matrix(grads, "conv"), group)[k])
        for factor, mean in ((layer.a[k], layer.mean_a[k]), (layer.g[k], layer.mean_g[k])):
            rest = factor.astype(np.float64) - np.outer(mean, mean)
            assert np.linalg.eigvalsh(rest).min() > -1e-5 * np.linalg.norm(factor)


def test_groups_of_layers_within_a_memory_limit_give_the_same():
    net, batches = Mlp((5, 4, 3, 3)), [batch()]
    targets, _ = find_targets(net)
    whole = collect(net, batches)
    limit = 4 * sum(map(gather.bytes_of, targets[1:]))
    groups = gather.groups_within(targets, limit)
    assert [target for group in groups for target in group] == targets and len(groups) == 2
    assert all(4 * sum(map(gather.bytes_of, group)) <= limit for group in groups)
    parts = [layer for group in groups for layer in collect(net, batches, targets=group)]
    for one, other in zip(whole, parts, strict=True):
        assert one.name == other.name
        for name in ("a", "g", "mean_a", "mean_g", "gradient"):
            near(getattr(other, name), getattr(one, name))
    assert gather.groups_within(targets, 10**12) == [targets]


def test_a_layer_beyond_the_memory_limit_is_named_with_the_cure():
    targets, _ = find_targets(Mlp((200, 4, 3)))
    with pytest.raises(MemoryError) as caught:
        gather.groups_within(targets, 10**5)
    words = ("layer layers.0", "factors of 201 and 4", "limit is 0.0 GiB", "raise the limit or skip the layer")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_layer_that_runs_twice_takes_no_more_than_its_mean():
    """Uses add up: A is the sum of both, and A - u u^T stays positive semi-definite."""

    class Twice(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense, self.tanh = nn.Dense(5, 5), nn.Tanh()
            fill(self, 0)

        def construct(self, x):
            return self.dense(self.tanh(self.dense(x)))

    (layer,) = collect(Twice(), [batch(outputs=5)])
    assert layer.a[0, -1, -1] == pytest.approx(2.0)
    assert layer.mean_a[0, -1] == pytest.approx(np.sqrt(2))
    rest = layer.a[0] - np.outer(layer.mean_a[0], layer.mean_a[0])
    assert np.linalg.eigvalsh(rest.astype(np.float64)).min() > -1e-5 * np.linalg.norm(layer.a)


def describe(net):
    """All that a user can see of a network but values."""
    return [(name, type(cell), sorted(vars(cell)), cell.training) for name, cell in net.cells_and_names()]


@pytest.mark.parametrize(
    ("path", "patched"), [("patches", []), ("native", ["conv", "depthwise"]), ("patches", ["depthwise"])]
)
def test_the_network_is_left_as_it_was(path, patched, monkeypatch):
    monkeypatch.setenv("THOR_CONVOLUTION", path)
    net = Mixed()
    for name in patched:
        convolution.use_patches(getattr(net, name))
    net.norm.set_train(False)
    before, names, stored = describe(net), [p.name for p in net.get_parameters()], values(net)
    x, y = images()
    outputs = net(x).asnumpy()
    collect(net, [(x, y)])
    assert describe(net) == before
    assert [p.name for p in net.get_parameters()] == names
    assert all(np.array_equal(stored[name], value) for name, value in values(net).items())
    np.testing.assert_array_equal(net(x).asnumpy(), outputs)
    assert thor.detach(net) == len(patched)  # nothing but the caller's own patches


def interrupted():
    raise KeyboardInterrupt


def each_example(output, target):
    return ((output - target) ** 2).sum(1)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batches": []}, ValueError, ("no batch",)),
        ({"batches": [batch(scale=np.inf)]}, FloatingPointError, ("loss of batch 0", "nothing can be profiled")),
        ({"batches": [batch(), batch(scale=np.nan)]}, FloatingPointError, ("loss of batch 1", "nan")),
        ({"batches": [batch(scale=1e25)]}, FloatingPointError, ("layers.0.a0", "not finite")),
        ({"batches": [batch()], "loss": each_example}, ValueError, ("must be one number", "(6,)", "reduction='mean'")),
        ({"batches": [batch()], "on_batch": interrupted}, KeyboardInterrupt, ()),
        ({"batches": [batch(inputs=7)]}, Exception, ()),
    ],
)
def test_what_goes_wrong_leaves_the_network_as_it_was(options, error, words):
    net = Mlp()
    before, loss = describe(net), gather.loss_of(net, options.get("loss", squared_error))
    with pytest.raises(error) as caught:
        gather.gather(
            net, loss, stream(*options["batches"]), find_targets(net)[0], options.get("on_batch", lambda: None)
        )
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert describe(net) == before


def test_a_network_that_is_its_own_loss():
    class WithLoss(nn.Cell):
        def __init__(self):
            super().__init__()
            self.net = Mlp()

        def construct(self, x, y):
            return squared_error(self.net(x), y)

    net, (x, y) = WithLoss(), batch()
    found = collect(net, [(x, y)], None)
    grads = gradients(net.net, squared_error, x, y)
    for k, layer in enumerate(found):
        assert layer.name == f"net.layers.{k}"
        near(layer.gradient, [matrix({name.removeprefix("net."): g for name, g in grads.items()}, f"layers.{k}")])


def test_synthetic_batches_are_seeded_normal_inputs_and_labels():
    make = gather.synthetic_batches((4, 2, 3), 7, 3, seed=5)
    first, again = list(make()), list(make())
    assert len(first) == 3
    for (x, y), (x2, y2) in zip(first, again, strict=True):
        assert (x.shape, x.dtype, y.shape, y.dtype) == ((4, 2, 3), ms.float32, (4,), ms.int32)
        assert 0 <= y.asnumpy().min() and y.asnumpy().max() < 7
        np.testing.assert_array_equal(x.asnumpy(), x2.asnumpy())
        np.testing.assert_array_equal(y.asnumpy(), y2.asnumpy())
    assert not np.array_equal(first[0][0].asnumpy(), first[1][0].asnumpy())


def test_a_network_is_let_go_of_once_it_was_profiled(mode):
    net = nn.SequentialCell(nn.Dense(4, 3))
    gone = weakref.ref(net)
    collect(net, [(Tensor(np.ones((2, 4), np.float32)), Tensor(np.zeros((2, 3), np.float32)))])
    del net
    gc.collect()
    assert gone() is None
