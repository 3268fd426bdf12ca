"""Layers of mint.nn, further layers of nn, and layers that a user declares: the factors and steps of their twins."""

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

import thor
from tests.support.networks import fill, gradients, make, squared_error, values
from tests.support.reference import damped_inverse, pi_damping

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Net(nn.Cell):
    """A dense layer of some class, tanh, an nn.Dense."""

    def __init__(self, first):
        super().__init__()
        self.first, self.last = first, nn.Dense(4, 3)
        fill(self, 0)

    def construct(self, x):
        return self.last(ops.tanh(self.first(x)))


class Fused(nn.Cell):
    """A linear layer as large-model libraries write it: transposed weight, bias fused, a compute type of its own."""

    def __init__(self, inputs, outputs, has_bias=True, compute=ms.float32):
        super().__init__()
        self.kernel = Parameter(Tensor(np.zeros((inputs, outputs), np.float32)), name="kernel")
        self.shift = Parameter(Tensor(np.zeros(outputs, np.float32)), name="shift") if has_bias else None
        self.compute = compute

    def construct(self, hidden):
        output = ops.matmul(hidden.astype(self.compute), self.kernel.astype(self.compute)).astype(ms.float32)
        return output if self.shift is None else output + self.shift


class Counted(nn.Dense):
    """A subclass with a construct of its own, which computes the same."""

    def construct(self, x):
        output = ops.matmul(x, self.weight.T)
        return output + self.bias if self.has_bias else output


class Inherited(nn.Dense):
    """A subclass that calls its parent's construct."""

    def construct(self, x):
        return super().construct(x)


class Misspelt(Fused):
    """Declared with an attribute that it does not have."""

    def construct(self, hidden):
        return ops.matmul(hidden, self.kernel) + self.shift


def batch(*shape):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((*shape, 5)) + 0.5, rng.standard_normal((*shape, 3))
    return Tensor(x.astype(np.float32)), Tensor(y.astype(np.float32))


def weight_of(cell):
    """[O, I] of any of the layers."""
    return cell.kernel.asnumpy().T if isinstance(cell, Fused) else cell.weight.asnumpy()


def alike(net, twin):
    """Give a network the weights of its twin."""
    fused, (kernel, *bias) = isinstance(net.first, Fused), [p.asnumpy() for p in twin.first.trainable_params()]
    for mine, value in zip(net.first.trainable_params(), [kernel.T.copy() if fused else kernel, *bias], strict=True):
        mine.set_data(Tensor(value))
    for mine, theirs in zip(net.last.trainable_params(), twin.last.trainable_params(), strict=True):
        mine.set_data(Tensor(theirs.asnumpy()))
    return net


DENSE = {
    "mint": lambda has_bias: mint.nn.Linear(5, 4, bias=has_bias),
    "declared, transposed": lambda has_bias: Fused(5, 4, has_bias),
    "declared subclass": lambda has_bias: Counted(5, 4, has_bias=has_bias),
}


def declare():
    thor.register(Fused, weight="kernel", bias="shift", transposed=True)
    thor.register(Counted)


SPLITS = {"mean": {"block_size": 3}, "rank": {"split": "block+rank", "rank": 2}}


def stepped(net, sharing, split, jit):
    """Factors and weights after three steps."""
    optimizer, step = make(net, jit=jit, weight_sharing=sharing, **SPLITS[split])
    for _ in range(3):
        step(*batch(6, 2))
    assert [layer.kind for layer in optimizer.layers] == ["dense", "dense"]
    return *optimizer.factors("first"), weight_of(net.first), net.last.weight.asnumpy()


@functools.cache
def of_twin(has_bias, sharing, split, jit):
    return stepped(Net(nn.Dense(5, 4, has_bias=has_bias)), sharing, split, jit)


@pytest.mark.parametrize(
    ("sharing", "has_bias", "split", "jit"),
    [(*shared, split, False) for shared in (("expand", True), ("pooled", False), ("reduce", True)) for split in SPLITS]
    + [("expand", True, "mean", True)],
)
@pytest.mark.parametrize("first", DENSE.values(), ids=DENSE)
def test_a_dense_layer_of_any_class_steps_as_nn_dense_does(first, sharing, has_bias, split, jit):
    declare()
    net = alike(Net(first(has_bias)), Net(nn.Dense(5, 4, has_bias=has_bias)))
    for mine, theirs in zip(stepped(net, sharing, split, jit), of_twin(has_bias, sharing, split, jit), strict=True):
        np.testing.assert_allclose(mine, theirs, **CLOSE)


def test_a_compute_type_of_its_own_stays_the_layers():
    declare()
    net = Net(Fused(5, 4, compute=ms.float16))
    optimizer, step = make(net)
    losses = [float(step(*batch(6)).asnumpy()) for _ in range(4)]
    assert losses[-1] < losses[0] and optimizer.factors("first")[0].dtype == np.float32


def test_what_cannot_be_declared_is_refused():
    with pytest.raises(TypeError, match="cell_class must be a class of nn.Cell, but got 3"):
        thor.register(3)
    with pytest.raises(ValueError, match="kind must be one of dense, conv, embedding, but got 'norm'"):
        thor.register(Fused, kind="norm")
    with pytest.raises(ValueError, match="construct of Inherited calls super.., which MindSpore .* write out"):
        thor.register(Inherited)
    with pytest.raises(ValueError, match="transposed is for the kind dense"):
        thor.register(Fused, kind="embedding", transposed=True)


def test_a_subclass_with_a_construct_of_its_own_is_left_out_until_it_is_declared():
    def left_out():
        return [item.reason for item in thor.THOR(Net(Counted(5, 4)), 0.1, 0.1).left_out]

    assert left_out() == ["overrides Dense.construct"]
    thor.register(Counted)
    assert left_out() == []


class Table(nn.Cell):
    """An embedding of the user's own."""

    def __init__(self):
        super().__init__()
        self.rows = Parameter(Tensor(np.ones((9, 3), np.float32)), name="rows")

    def construct(self, ids):
        return ops.gather(self.rows, ids, 0)


def test_a_declared_embedding_steps_as_nn_embedding_does():
    thor.register(Table, kind="embedding", weight="rows")
    rng = np.random.default_rng(0)
    ids, y = rng.integers(0, 9, (4, 5)).astype(np.int32), rng.standard_normal((4, 5, 3)).astype(np.float32)
    start, found = rng.standard_normal((9, 3)).astype(np.float32), []
    for net in (Table(), nn.Embedding(9, 3)):
        (table,) = net.get_parameters()
        table.set_data(Tensor(start))
        optimizer, step = make(net, block_size=2)
        assert [(layer.kind, layer.weight_sharing) for layer in optimizer.layers] == [("embedding", "expand")]
        for _ in range(2):
            step(Tensor(ids), Tensor(y))
        found.append(table.asnumpy())
    np.testing.assert_allclose(*found, **CLOSE)


class Lines(nn.Cell):
    """A convolution over one axis, tanh, the mean over positions."""

    def __init__(self, as_images, **options):
        super().__init__()
        self.as_images = as_images
        if as_images:
            for name in ("kernel_size", "stride", "dilation"):
                if name in options:
                    options[name] = (1, options[name])
            if options.get("pad_mode") == "pad":
                options["padding"] = (0, 0, options["padding"], options["padding"])
            self.conv = nn.Conv2d(2, 4, **options)
        else:
            self.conv = nn.Conv1d(2, 4, **options)
        fill(self, 0)

    def construct(self, x):
        y = self.conv(x.expand_dims(2)).squeeze(2) if self.as_images else self.conv(x)
        return ops.tanh(y).mean(-1)


@pytest.mark.parametrize("sharing", ["expand", "pooled", "reduce"])
@pytest.mark.parametrize(
    "options",
    [{"kernel_size": 3, "pad_mode": "same"}, {"kernel_size": 3, "stride": 2, "pad_mode": "valid", "has_bias": True},
     {"kernel_size": 2, "dilation": 2, "pad_mode": "pad", "padding": 1, "group": 2}],
)  # fmt: skip
def test_a_convolution_over_one_axis_steps_as_that_over_images_of_one_row(options, sharing):
    rng = np.random.default_rng(0)
    x = Tensor((rng.standard_normal((4, 2, 9)) + 0.3).astype(np.float32))
    y = Tensor(rng.standard_normal((4, 4)).astype(np.float32))
    found = []
    for as_images in (False, True):
        net = Lines(as_images, **options)
        optimizer, step = make(net, block_size=3, weight_sharing=sharing)
        for _ in range(2):
            step(x, y)
        found.append((*optimizer.factors("conv"), net.conv.weight.asnumpy().reshape(4, -1)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


class Normal(nn.Cell):
    """A convolution and a normalisation."""

    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 2, pad_mode="valid"), norm
        rng = np.random.default_rng(0)
        for parameter in self.trainable_params():
            parameter.set_data(Tensor(rng.standard_normal(parameter.shape).astype(np.float32) + 0.5))
        self.set_train()

    def construct(self, x):
        return ops.tanh(self.norm(self.conv(x))).mean((2, 3))


GROUP_NORMS = {
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), 2, ("gamma", "beta")),
    "mint GroupNorm": (lambda: mint.nn.GroupNorm(2, 4), 2, ("weight", "bias")),
}


@pytest.mark.parametrize("name", GROUP_NORMS)
def test_a_group_norms_fisher_is_the_exact_diagonal(name):
    """An example's gradient is its own: the normalisation does not mix examples."""
    make_norm, _, parts = GROUP_NORMS[name]
    net = Normal(make_norm())
    rng = np.random.default_rng(1)
    x = Tensor(rng.standard_normal((4, 2, 5, 5)).astype(np.float32))
    y = Tensor(rng.standard_normal((4, 4)).astype(np.float32))
    optimizer, step = make(net, norms=True, lr=0.0)
    step(x, y)
    for part in parts:
        exact = np.zeros(4)
        for i in range(4):
            exact += (
                gradients(net, squared_error, x[i : i + 1], y[i : i + 1])[f"norm.{part}"].astype(np.float64) ** 2 / 4
            )
        np.testing.assert_allclose(optimizer.factors(f"norm.{part}")[1], exact, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("sharing", ["expand", "pooled"])
def test_a_layer_norm_of_mint_has_the_fisher_of_nn(sharing, monkeypatch):
    """Its construct is replaced by one that calls nn's operator, for here its own has no gradient."""

    def construct(self, input):
        return ops.LayerNorm(-1, -1, self.eps)(input, self.weight, self.bias)[0]

    monkeypatch.setattr(mint.nn.LayerNorm, "construct", construct)
    found = []
    for norm, part in ((mint.nn.LayerNorm(4), "weight"), (nn.LayerNorm((4,)), "gamma")):
        net = nn.SequentialCell(nn.Dense(5, 4), norm, nn.Dense(4, 3))
        rng = np.random.default_rng(0)
        for parameter in net.trainable_params():
            parameter.set_data(Tensor(rng.standard_normal(parameter.shape).astype(np.float32)))
        optimizer, step = make(net, norms=True, lr=0.0, weight_sharing=sharing)
        step(*batch(6, 2))
        found.append(optimizer.factors(f"1.{part}")[1])
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_layers_of_mint_without_a_kernel_here_are_captured_by_their_structure():
    """On a CPU mint's convolution, embedding and BatchNorm cannot run."""

    class Zoo(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table, self.conv = mint.nn.Embedding(9, 4), mint.nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=True)
            self.norm, self.one = mint.nn.BatchNorm2d(6), mint.nn.BatchNorm1d(6)
            self.instance = nn.InstanceNorm2d(6)

    optimizer = thor.THOR(Zoo(), 0.1, 0.1, norms=True)
    assert [(r.name, r.kind, r.a_dim, r.g_dim) for r in optimizer.layers] == [
        ("table", "embedding", 9, 4), ("conv", "conv", 19, 3), ("norm.weight", "norm_scale", 1, 6),
        ("norm.bias", "norm_shift", 1, 6), ("one.weight", "norm_scale", 1, 6), ("one.bias", "norm_shift", 1, 6),
        ("instance.gamma", "norm_scale", 1, 6), ("instance.beta", "norm_shift", 1, 6),
    ]  # fmt: skip
    assert not optimizer.left_out


def test_a_convolution_of_mint_steps_as_that_of_nn_where_it_has_a_kernel(monkeypatch):
    """Its construct is replaced by one that calls nn's operator, for here it has none."""

    def construct(self, x):
        return ops.conv2d(x, self.weight, self.bias, self.stride, "pad", self.padding, self.dilation, self.groups)

    monkeypatch.setattr(mint.nn.Conv2d, "construct", construct)
    rng = np.random.default_rng(0)
    x = Tensor((rng.standard_normal((4, 2, 6, 6)) + 0.3).astype(np.float32))
    y = Tensor(rng.standard_normal((4, 4)).astype(np.float32))
    found = []
    for conv in (
        mint.nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=True),
        nn.Conv2d(2, 4, 3, stride=2, pad_mode="pad", padding=1, has_bias=True),
    ):
        net = nn.SequentialCell(conv, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        fill(net, 0)
        optimizer, step = make(net, block_size=4)
        for _ in range(2):
            step(x, y)
        found.append((*optimizer.factors("0"), conv.weight.asnumpy(), conv.bias.asnumpy()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


def test_the_step_of_a_transposed_weight_is_that_of_the_dense_formula():
    thor.register(Fused, weight="kernel", bias="shift", transposed=True)
    net = nn.SequentialCell(Fused(5, 3, has_bias=False))
    fill(net, 0)
    x, y = batch(6)
    before, grads = values(net)["0.kernel"], gradients(net, squared_error, x, y)["0.kernel"]
    optimizer, step = make(net, split="block")
    step(x, y)
    a, g = (each.astype(np.float64) for each in optimizer.factors("0"))
    damp_a, damp_g = pi_damping(a, g, 0.1)
    direction = damped_inverse(a, damp_a) @ grads @ damped_inverse(g, damp_g)
    np.testing.assert_allclose(net[0].kernel.asnumpy(), before - 0.05 * direction, **CLOSE)


class Whole(nn.Cell):
    """An embedding, a LayerNorm, a convolution, a BatchNorm and dense layers."""

    def __init__(self, activation=None):
        super().__init__()
        self.table, self.before, self.conv = nn.Embedding(9, 6), nn.LayerNorm((6,)), nn.Conv2d(1, 2, 3, has_bias=True)
        self.norm, self.flatten, self.tanh = nn.BatchNorm2d(2), nn.Flatten(), nn.Tanh()
        self.hidden, self.last = nn.Dense(2 * 4 * 6, 5, activation=activation), nn.Dense(5, 3)
        rng = np.random.default_rng(0)
        for parameter in self.trainable_params():
            parameter.set_data(Tensor((0.4 * rng.standard_normal(parameter.shape) + 0.2).astype(np.float32)))
        self.set_train()

    def construct(self, ids):
        x = self.before(self.table(ids)).expand_dims(1)
        x = self.flatten(self.tanh(self.norm(self.conv(x))))
        return self.last(self.tanh(self.hidden(x)))


def rewritten(net):
    return ms.amp.auto_mixed_precision(net, "O1", ms.float16)


def loss_in_float32(output, target):
    return squared_error(output.astype(ms.float32), target)


def test_a_network_that_amp_rewrites_has_the_factors_of_its_source_in_half_precision(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the rewritten network is written there
    rng = np.random.default_rng(1)
    ids = Tensor(rng.integers(0, 9, (6, 4)).astype(np.int32))
    y = Tensor(rng.standard_normal((6, 3)).astype(np.float32))
    found = []
    for net in (rewritten(Whole()), Whole()):
        optimizer, step = make(net, lr=0.0, norms=True, loss_fn=loss_in_float32, jit=True, loss_scale=128.0)
        step(ids, y)
        assert not optimizer.left_out and {layer.refreshes for layer in optimizer.layers} == {1}
        found.append({layer.name: optimizer.factors(layer.name) for layer in optimizer.layers})
    assert found[0].keys() == found[1].keys() and len(found[0]) == 8
    for name, of_source in found[1].items():
        for mine, theirs in zip(found[0][name], of_source, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-2 * np.abs(theirs).max(), err_msg=name)


def test_a_rewritten_layer_with_an_activation_inside_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left_out = thor.THOR(rewritten(Whole("relu")), 0.1, 0.1, norms=True).left_out
    ((name, reason),) = [(item.name, item.reason) for item in left_out]
    assert name == "hidden" and reason.startswith("rewritten by MindSpore, with an activation inside")


def test_a_layer_without_the_weight_that_was_declared_is_left_out_with_that_reason():
    thor.register(Misspelt, kind="dense", weight="kernal", transposed=True)
    left_out = thor.THOR(Net(Misspelt(5, 4)), 0.1).left_out
    assert [(each.name, each.reason) for each in left_out] == [
        ("first", "has no Parameter 'kernal', which its class is declared to have")
    ]
