import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

import thor
from tests.support import reference
from tests.support.networks import Mixed, Mlp, batch, fill, gradients, images, make, squared_error, values
from thor.capture.targets import find_targets

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Chain(nn.Cell):
    """The given cells one after the other, with tanh between."""

    def __init__(self, *cells, seed=0):
        super().__init__()
        self.cells_in_order = nn.CellList(list(cells))
        self.tanh = nn.Tanh()
        fill(self, seed)

    def construct(self, x):
        for index, cell in enumerate(self.cells_in_order):
            x = cell(x) if index == 0 else cell(self.tanh(x))
        return x


class Twice(nn.Cell):
    """One dense layer, used twice."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.tanh = nn.Tanh()
        fill(self, 0)

    def construct(self, x):
        return self.dense(self.tanh(self.dense(x)))


def tied():
    """Two dense layers, one weight, one bias."""
    first, second = nn.Dense(4, 4), nn.Dense(4, 4)
    second.weight, second.bias = first.weight, first.bias
    return Chain(first, second)


def names(optimizer):
    return [record.name for record in optimizer.layers]


def reasons(optimizer):
    return {item.name: item.reason for item in optimizer.left_out}


def with_one_bias():
    """Two dense layers of their own weights, one bias."""
    first, second = nn.Dense(4, 4), nn.Dense(4, 4)
    second.bias = first.bias
    return Chain(first, second)


@pytest.mark.parametrize("skip", [(), ("1$",)], ids=["both", "one skipped"])
def test_a_bias_that_another_layer_has_too_takes_the_plain_gradient(skip):
    """Its gradient is the sum over both: beside one layer's weight it would turn that layer's direction."""
    net = with_one_bias()
    x, y = batch(inputs=4, outputs=4)
    plain = gradients(net, squared_error, x, y)
    before = values(net)
    optimizer, step = make(net, lr=0.1, skip=skip)
    assert [record.a_dim for record in optimizer.layers] == [4] * (2 - len(skip))
    assert reasons(optimizer)["cells_in_order.0.bias"] == "bias of other layers too"
    step(x, y)
    bias = net.cells_in_order[0].bias
    np.testing.assert_allclose(bias.asnumpy(), before[bias.name] - 0.1 * plain[bias.name], rtol=1e-5, atol=1e-7)


def test_layers_of_one_form_share_their_taps_and_keep_their_own_factors():
    """MindSpore compiles each tap object anew: in a deep network of equal layers that took a third longer."""
    net = Chain(nn.Dense(4, 4), nn.Dense(4, 4), nn.Dense(4, 3))
    optimizer, _ = make(net)
    taps = [(layer.ports[0].tap, layer.ports[1].tap) for layer in optimizer.captured]
    assert taps[0][0] is taps[1][0] is taps[2][0]  # all read four inputs and a bias
    assert taps[0][1] is taps[1][1] is not taps[2][1]
    assert taps[0][0] is not taps[0][1]
    blocks = {id(port.blocks) for layer in optimizer.captured for port in layer.ports}
    assert len(blocks) == 6


@pytest.mark.parametrize("path", ["native", "patches"])
@pytest.mark.parametrize("make_net", [Mlp, Mixed])
def test_a_captured_network_keeps_names_values_types_and_outputs(make_net, path, mode, monkeypatch):
    monkeypatch.setenv("THOR_CONVOLUTION", path)
    net = make_net()
    net.set_train(False)
    x = batch()[0] if make_net is Mlp else images()[0]
    before, output = values(net), net(x).asnumpy()
    cells = [(name, type(cell)) for name, cell in net.cells_and_names()]
    optimizer, _ = make(net)
    assert not net.compile_cache  # else MindSpore would go on with the graph of the network as it was
    net.set_train(False)
    assert list(values(net)) == list(before)
    assert all((value == before[name]).all() for name, value in values(net).items())
    assert [name for name, _ in net.cells_and_names()] == [name for name, _ in cells]
    assert all(isinstance(cell, kind) for (_, cell), (_, kind) in zip(net.cells_and_names(), cells, strict=True))
    # as patches the sums are taken in another order: the last digits of float32
    tolerance = 1e-5 if path == "patches" and make_net is Mixed else 0
    np.testing.assert_allclose(net(x).asnumpy(), output, rtol=tolerance, atol=tolerance)
    assert len(optimizer.layers) == thor.detach(net)
    assert [(name, type(cell)) for name, cell in net.cells_and_names()] == cells
    assert not any(key.startswith("thor_") for _, cell in net.cells_and_names() for key in vars(cell))
    np.testing.assert_array_equal(net(x).asnumpy(), output)


def test_detaching_allows_a_new_optimizer():
    net = Mlp()
    make(net)
    assert thor.detach(net) == 2
    assert thor.detach(net) == 0
    _, step = make(net)
    assert np.isfinite(step(*batch()).asnumpy())


def test_checkpoints_of_the_plain_network_fit_the_captured_one_and_back(tmp_path):
    plain, captured = Mixed(seed=1), Mixed(seed=2)
    make(captured)
    for source, target in ((plain, captured), (captured, plain)):
        fill(source, seed=3 if source is plain else 4)
        path = str(tmp_path / "net.ckpt")
        ms.save_checkpoint(source, path)
        assert ms.load_param_into_net(target, ms.load_checkpoint(path)) == ([], [])
        assert all((value == values(source)[name]).all() for name, value in values(target).items())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("axes", [(6,), (3, 2), (2, 3, 1), ()])
def test_any_number_of_leading_axes_folds_into_rows(axes, bias):
    net = Chain(nn.Dense(4, 3, has_bias=bias))
    rng = np.random.default_rng(0)
    x, y = (Tensor(rng.standard_normal((*axes, n)).astype(np.float32)) for n in (4, 3))
    wanted = net(x).asnumpy()
    optimizer, step = make(net, lr=0.0, weight_sharing="expand")
    np.testing.assert_allclose(net(x).asnumpy(), wanted, rtol=1e-6)
    step(x, y)
    rows = max(1, int(np.prod(axes)))
    g = 2 * (wanted - y.asnumpy()) / rows
    for ours, theirs in zip(
        optimizer.factors("cells_in_order.0"), reference.dense_factors(x.asnumpy(), g, bias), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_an_activation_inside_the_layer_is_kept_and_g_is_taken_before_it():
    net = Chain(nn.Dense(5, 3, activation="relu"))
    x, y = batch()
    wanted = net(x).asnumpy()
    optimizer, step = make(net, lr=0.0)
    np.testing.assert_array_equal(net(x).asnumpy(), wanted)
    step(x, y)
    g = 2 * (wanted - y.asnumpy()) / len(wanted) * (wanted > 0)
    np.testing.assert_allclose(optimizer.factors("cells_in_order.0")[1], len(wanted) * g.T @ g, **CLOSE)


@pytest.mark.parametrize("make_net", [Twice, tied])
def test_a_layer_used_twice_or_tied_has_one_pair_of_factors_the_mean_of_a_and_the_sum_of_g(make_net):
    net = make_net()
    x, y = batch(inputs=4, outputs=4)
    optimizer, step = make(net, lr=0.0)
    assert len(optimizer.layers) == 1
    step(x, y)
    own = values(net)
    weight = next(v for n, v in own.items() if n.endswith("weight"))
    bias = next(v for n, v in own.items() if n.endswith("bias"))
    _, inputs, grads = reference.mlp_pass([weight] * 2, [bias] * 2, x.asnumpy(), y.asnumpy())
    pairs = [reference.dense_factors(a, g, True) for a, g in zip(inputs, grads, strict=True)]
    (a, g), (of_a, of_g) = optimizer.factors(names(optimizer)[0]), zip(*pairs, strict=True)
    np.testing.assert_allclose(a, sum(of_a) / 2, **CLOSE)
    np.testing.assert_allclose(g, sum(of_g), **CLOSE)


class Convolved(nn.Cell):
    """A convolution of two channels to two, twice: one object, or two of the same values."""

    def __init__(self, twice):
        super().__init__()
        self.first = nn.Conv2d(2, 2, 3, pad_mode="same", has_bias=True)
        self.second = self.first if twice else nn.Conv2d(2, 2, 3, pad_mode="same", has_bias=True)
        self.tanh = nn.Tanh()
        fill(self, 0)
        for ours, theirs in zip(self.second.trainable_params(), self.first.trainable_params(), strict=True):
            ours.set_data(theirs.value())

    def construct(self, x):
        return self.second(self.tanh(self.first(x))).mean((2, 3))


def test_a_convolution_used_twice_has_mean_and_sum_of_the_factors_of_two_used_once():
    rng = np.random.default_rng(0)
    x, y = (Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((4, 2, 5, 5), (4, 2)))
    optimizers = []
    for twice in (True, False):
        optimizer, step = make(Convolved(twice), lr=0.0)
        step(x, y)
        optimizers.append(optimizer)
    assert [names(optimizer) for optimizer in optimizers] == [["first"], ["first", "second"]]
    of_a, of_g = zip(*(optimizers[1].factors(name) for name in names(optimizers[1])), strict=True)
    a, g = optimizers[0].factors("first")
    np.testing.assert_allclose(a, sum(of_a) / 2, **CLOSE)
    np.testing.assert_allclose(g, sum(of_g), **CLOSE)


@pytest.mark.parametrize("options", [{"loss_scale": 1024.0}, {"accumulate": 2}, {"loss_scale": 64.0, "accumulate": 2}])
@pytest.mark.parametrize("split", ["block", "block+mean", "block+rank"])
def test_loss_scale_and_accumulation_leave_a_convolutions_factors_as_they_are(split, options):
    found = []
    for extra in ({}, options):
        optimizer, step = make(Mixed(), lr=0.0, split=split, block_size=3, rank=2, **extra)
        for _ in range(extra.get("accumulate", 1)):
            step(*images())
        found.append([factor for layer in optimizer.layers for factor in optimizer.factors(layer.name)])
    for plain, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, plain, rtol=1e-4, atol=1e-5 * np.abs(plain).max())


def test_each_convolution_of_a_network_gets_the_factors_of_its_own_patches():
    """The first layer of Mixed: grouped, strided, rectangular, asymmetrically padded, with bias."""
    net = Mixed()
    x, y = images()
    optimizer, step = make(net, lr=0.0)
    assert [(r.name, r.kind, r.a_dim, r.g_dim) for r in optimizer.layers] == [
        ("conv", "conv", 7, 2), ("depthwise", "conv", 9, 1), ("dense", "dense", 33, 3),
    ]  # fmt: skip
    step(x, y)
    seen = reference.patches(x.asnumpy(), (3, 2), (2, 1), (1, 1), (1, 0, 0, 1))
    a, g = optimizer.factors("conv")
    assert a.shape == (2, 7, 7) and g.shape == (2, 2, 2)
    dummy = np.zeros((4, 4, *seen.shape[1:3]))
    for ours, (theirs, _) in zip(a, reference.conv_factors(seen, dummy, 2, True), strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
    assert optimizer.factors("depthwise")[0].shape == (4, 9, 9)
    assert optimizer.factors("depthwise")[1].shape == (4, 1, 1)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_convolutions_g_is_the_scaled_gram_matrix_of_its_output_gradient(has_bias):
    net = nn.SequentialCell(nn.Conv2d(2, 3, 2, pad_mode="valid", has_bias=has_bias))
    fill(net, 0)

    def loss_fn(output, target):
        return ((output - target) ** 2).sum((1, 2, 3)).mean()

    rng = np.random.default_rng(0)
    x, y = (Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((4, 2, 4, 5), (4, 3, 3, 4)))
    g = 2 * (net(x).asnumpy() - y.asnumpy()) / 4
    optimizer, step = make(net, lr=0.0, loss_fn=loss_fn)
    step(x, y)
    seen = reference.patches(x.asnumpy(), (2, 2), (1, 1), (1, 1), (0, 0, 0, 0))
    for ours, theirs in zip(optimizer.factors("0"), reference.conv_factors(seen, g, 1, has_bias)[0], strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_frozen_skipped_overridden_and_unknown_layers_are_left_out_with_reasons():
    class Doubled(nn.Dense):
        def construct(self, x):
            return 2 * super().construct(x)

    net = Chain(nn.Dense(5, 4), nn.Dense(4, 4), Doubled(4, 4), nn.Dense(4, 4), nn.LayerNorm((4,)))
    net.cells_in_order[0].weight.requires_grad = False
    net.cells_in_order[0].bias.requires_grad = False
    optimizer, _ = make(net, skip=[r"order\.1$"])
    assert names(optimizer) == ["cells_in_order.3"]
    assert reasons(optimizer) == {
        "cells_in_order.0": "frozen",
        "cells_in_order.1": "matches skip",
        "cells_in_order.2": "overrides Dense.construct",
        "cells_in_order.4": "normalisation is not captured (norms=False)",
    }


def test_a_frozen_bias_takes_no_part_in_the_factor():
    net = Mlp()
    net.layers[0].bias.requires_grad = False
    optimizer, step = make(net)
    assert [record.a_dim for record in optimizer.layers] == [5, 5]  # 5 inputs; 4 inputs and a bias
    before = values(net)
    step(*batch())
    after = values(net)
    assert (after["layers.0.bias"] == before["layers.0.bias"]).all()
    assert (after["layers.0.weight"] != before["layers.0.weight"]).any()


def test_a_subclass_that_computes_as_its_base_is_captured_and_stays_an_instance():
    class Named(nn.Dense):
        def __init__(self):
            super().__init__(5, 3)
            self.label = "mine"

    net = Chain(Named())
    optimizer, step = make(net)
    assert isinstance(net.cells_in_order[0], Named) and net.cells_in_order[0].label == "mine"
    step(*batch())
    assert names(optimizer) == ["cells_in_order.0"]
    thor.detach(net)
    assert type(net.cells_in_order[0]) is Named


def test_layers_are_found_by_object_whatever_bare_parameters_stand_between():
    class WithToken(nn.Cell):
        def __init__(self):
            super().__init__()
            self.token = Parameter(Tensor(np.full(5, 0.5, np.float32)), name="token")
            self.second = nn.Dense(4, 3)  # defined before, used after
            self.first = nn.Dense(5, 4)
            fill(self, 0)

        def construct(self, x):
            return self.second(self.first(x + self.token))

    net = WithToken()
    optimizer, step = make(net)
    assert {r.name: (r.a_dim, r.g_dim) for r in optimizer.layers} == {"first": (6, 4), "second": (5, 3)}
    assert reasons(optimizer) == {"WithToken": "this type has no factors here"}
    token = net.token.asnumpy().copy()
    step(*batch())
    assert (net.token.asnumpy() != token).any()  # it still trains, by the plain gradient


def test_a_layer_that_is_not_among_the_optimized_parameters_is_left_out():
    net = Mlp()
    optimizer, _ = make(net, params=net.layers[1].trainable_params())
    assert names(optimizer) == ["layers.1"]
    assert reasons(optimizer) == {"layers.0": "not among the optimizer's parameters"}


def test_a_bias_that_is_not_among_them_leaves_its_weight_captured():
    net, (x, y) = Mlp(), batch()
    optimizer, step = make(net, params=[w for w in net.trainable_params() if w.name.endswith("weight")])
    assert [(r.name, r.a_dim) for r in optimizer.layers] == [("layers.0", 5), ("layers.1", 4)]
    assert reasons(optimizer) == dict.fromkeys(
        ("layers.0.bias", "layers.1.bias"), "not among the optimizer's parameters"
    )
    before, grads = values(net), gradients(net, squared_error, x, y)
    step(x, y)
    a, g = (each.astype(np.float64) for each in optimizer.inverses("layers.0"))
    np.testing.assert_allclose(
        values(net)["layers.0.weight"], before["layers.0.weight"] - 0.05 * g @ grads["layers.0.weight"] @ a, **CLOSE
    )
    np.testing.assert_array_equal(values(net)["layers.0.bias"], before["layers.0.bias"])


class Wrapped(nn.Cell):
    """A Cell of its own that uses another one's weight."""

    def __init__(self, dense):
        super().__init__()
        self.weight = dense.weight

    def construct(self, x):
        return ms.ops.matmul(x, self.weight)


def shared_without_bias(first):
    second = nn.Dense(4, 4, has_bias=False)
    second.weight = first.weight
    return second


@pytest.mark.parametrize(
    ("make_second", "skip", "why"),
    [
        (shared_without_bias, [], ["cells_in_order.0's weight is used in several forms"] * 2),
        (Wrapped, [], ["this type has no factors here", "cells_in_order.1, which is left out, has its weight too"]),
        (lambda first: first, ["order.0"], ["matches skip"]),
        (shared_without_bias, ["order.1"], ["matches skip", "cells_in_order.1, which is left out, has its weight too"]),
    ],
)
def test_a_weight_with_a_use_that_is_not_captured_takes_the_plain_gradient(make_second, skip, why):
    """Its gradient comes from all uses: factors of some of them would be those of another layer."""
    first = nn.Dense(4, 4)
    targets, left_out = find_targets(Chain(first, make_second(first)), skip)
    assert not targets and [x.reason for x in left_out] == why


def test_evaluation_of_a_captured_network_needs_no_step():
    net = Mlp()
    make(net)
    x, y = batch()
    loss, _, _ = reference.mlp_pass(
        [c.weight.asnumpy() for c in net.layers], [c.bias.asnumpy() for c in net.layers], x.asnumpy(), y.asnumpy()
    )
    np.testing.assert_allclose(squared_error(net(x), y).asnumpy(), loss, rtol=1e-5)
