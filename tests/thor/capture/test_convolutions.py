"""Convolutions over three axes, transposed ones, those of standardised weights, channels last: factors and steps.

A network is one layer, and the loss is linear in its output, so that the output's gradient is the target over the
number of examples. The references are NumPy in float64.
"""

import itertools

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

import thor
from tests.support.networks import fill, gradients, make
from tests.support.reference import damped_inverse, pi_damping
from thor.factors.blocks import BlockPlan

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
BATCH, INPUTS, OUTPUTS = 3, 4, 6


def linear_loss(output, target):
    """Mean over the examples of <output, target>."""
    return (output * target).sum() / output.shape[0]


def normal(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) + 0.3).astype(np.float32)


def patches(x, kernel, stride, dilation, pads):
    """[B, P, C, k] in float64 of x [B, C, *S], with any number of axes; ``pads`` are (before, after) of each."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *pads))
    counts = [
        (size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    seen = []
    for place in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(at * d, at * d + s * (count - 1) + 1, s)
            for at, s, d, count in zip(place, stride, dilation, counts, strict=True)
        )
        seen.append(x[(slice(None), slice(None), *window)].reshape(len(x), x.shape[1], -1))
    return np.stack(seen, -1).transpose(0, 2, 1, 3)


def grouped(rows, groups):
    """[groups, B, P, d] of rows [B, P, channels, ...]."""
    batch, positions = rows.shape[:2]
    return rows.reshape(batch, positions, groups, -1).transpose(2, 0, 1, 3)


def positions_of(values):
    """[B, P, channels] of [B, channels, *S]."""
    return values.astype(np.float64).reshape(*values.shape[:2], -1).transpose(0, 2, 1)


def factors_of(a, g, sharing):
    """(A, G), each [groups, d, d], of rows a and g [groups, B, P, d], g being the gradient of the mean loss."""
    batch, positions = a.shape[1:3]
    if sharing == "reduce":
        a, g = a.mean(2, keepdims=True), g.sum(2, keepdims=True)
        return np.einsum("cbpi,cbpj->cij", a, a) / batch, np.einsum("cbpi,cbpj->cij", g, g) * batch
    if sharing == "pooled":
        return np.einsum("cbpi,cbpj->cij", a, a) / batch, np.einsum("cbpi,cbpj->cij", g, g) * batch / positions
    counts = (np.abs(g).sum((0, 3)) > 0)[None, :, :, None]
    terms = counts.sum()
    return np.einsum("cbpi,cbpj->cij", a * counts, a) / terms, np.einsum("cbpi,cbpj->cij", g, g) * terms


def by_group(factor):
    return factor if factor.ndim == 3 else factor[None]


def check(net, x, a, g, sharing="pooled", transpose=False, target=None, **options):
    """Factors and step of the network's only layer against rows a and g [groups, B, P, d] of its weight's matrix."""
    layer = net[0]
    before, has_bias = layer.weight.asnumpy().copy(), layer.bias is not None
    grads = gradients(net, linear_loss, Tensor(x), Tensor(target))
    expected = np.einsum("cbpo,cbpi->coi", *((a, g) if transpose else (g, a)))
    in_a = has_bias and not transpose
    found = grads["0.weight"].reshape(len(a), -1, expected.shape[2] - in_a)
    if in_a:
        found = np.concatenate([found, grads["0.bias"].reshape(len(a), -1, 1)], 2)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)  # the rows are right: their products add up
    optimizer, step = make(
        net, lr=0.5, split="block", block_size=512, weight_sharing=sharing, loss_fn=linear_loss, **options
    )
    step(Tensor(x), Tensor(target))
    references = factors_of(a, g, sharing)
    for mine, theirs in zip(optimizer.factors("0"), references, strict=True):
        np.testing.assert_allclose(by_group(mine), theirs, rtol=1e-3, atol=1e-5)
    moved = (before - layer.weight.asnumpy()).reshape(found.shape[0], found.shape[1], -1) / 0.5
    for group, (of_a, of_g) in enumerate(zip(*references, strict=True)):
        damp_a, damp_g = pi_damping(of_a, of_g, 0.1)
        rows, columns = damped_inverse(of_g, damp_g), damped_inverse(of_a, damp_a)
        if transpose:
            rows, columns = columns, rows
        direction = rows @ found[group] @ columns
        np.testing.assert_allclose(moved[group], direction[:, : moved.shape[2]], rtol=2e-3, atol=1e-4)
    return optimizer


VOLUMES = {
    "same": {"kernel_size": 2, "stride": (2, 1, 1), "pad_mode": "same"},
    "valid, grouped": {"kernel_size": (2, 1, 2), "pad_mode": "valid", "has_bias": True, "group": 2},
    "padded": {"kernel_size": (1, 3, 2), "stride": 2, "pad_mode": "pad", "padding": (0, 1, 1, 0, 0, 1)},
}


def pads_of(pad_mode, padding, sizes, kernel, stride, dilation):
    """(before, after) along each axis."""
    if pad_mode == "pad":
        each = (padding,) * (2 * len(sizes)) if isinstance(padding, int) else padding
        return tuple(zip(each[::2], each[1::2], strict=True))
    if pad_mode == "valid":
        return ((0, 0),) * len(sizes)
    totals = [
        max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    return tuple((total // 2, total - total // 2) for total in totals)


def wide(value, axes):
    return (value,) * axes if isinstance(value, int) else tuple(value)


@pytest.mark.parametrize("sharing", ["pooled", "expand", "reduce"])
@pytest.mark.parametrize("options", VOLUMES.values(), ids=VOLUMES)
def test_a_convolution_over_three_axes(options, sharing):
    net = nn.SequentialCell(nn.Conv3d(INPUTS, OUTPUTS, **options))
    fill(net, 0)
    x = normal(BATCH, INPUTS, 3, 4, 5)
    target = normal(*net(Tensor(x)).shape, seed=1)
    kernel, stride = wide(options["kernel_size"], 3), wide(options.get("stride", 1), 3)
    pads = pads_of(options["pad_mode"], options.get("padding", 0), x.shape[2:], kernel, stride, (1, 1, 1))
    groups = options.get("group", 1)
    a = grouped(patches(x, kernel, stride, (1, 1, 1), pads), groups)
    if net[0].has_bias:
        a = np.concatenate([a, np.ones_like(a[..., :1])], -1)
    check(net, x, a, grouped(positions_of(target) / BATCH, groups), sharing, target=target)


def test_a_convolution_of_mint_over_three_axes_where_it_has_a_kernel(monkeypatch):
    """Its construct is replaced by one that calls nn's operator, for here it has none."""

    def construct(self, input):
        pads = (self.padding[0],) * 2 + (self.padding[1],) * 2 + (self.padding[2],) * 2
        convolve = ops.Conv3D(3, self.kernel_size, 1, "pad", pads, self.stride, self.dilation)
        return convolve(input, self.weight)

    monkeypatch.setattr(mint.nn.Conv3d, "construct", construct)
    net = nn.SequentialCell(mint.nn.Conv3d(2, 3, 2, padding=(1, 0, 1), bias=False))
    fill(net, 0)
    x = normal(2, 2, 3, 4, 3)
    target = normal(*net(Tensor(x)).shape, seed=1)
    a = grouped(patches(x, (2, 2, 2), (1, 1, 1), (1, 1, 1), ((1, 1), (0, 0), (1, 1))), 1)
    check(net, x, a, grouped(positions_of(target) / 2, 1), target=target)


TRANSPOSED = {
    "one axis": (nn.Conv1dTranspose, {"kernel_size": 3, "stride": 2, "pad_mode": "pad", "padding": 1}),
    "one axis, same": (nn.Conv1dTranspose, {"kernel_size": 3, "stride": 2, "pad_mode": "same", "has_bias": True}),
    "same": (nn.Conv2dTranspose, {"kernel_size": 3, "stride": 2, "pad_mode": "same", "has_bias": True}),
    "valid": (nn.Conv2dTranspose, {"kernel_size": (3, 2), "stride": (1, 2), "pad_mode": "valid"}),
    "valid, apart": (nn.Conv2dTranspose, {"kernel_size": 1, "stride": 2, "pad_mode": "valid"}),
    "padded": (nn.Conv2dTranspose, {"kernel_size": 3, "stride": 2, "pad_mode": "pad", "padding": (1, 0, 0, 1)}),
    "padded, more output": (
        nn.Conv2dTranspose, {"kernel_size": 3, "stride": 2, "pad_mode": "pad", "padding": 1, "output_padding": 1}
    ),
    "grouped": (nn.Conv2dTranspose, {"kernel_size": 2, "stride": 2, "pad_mode": "valid", "group": 2}),
    "three axes": (nn.Conv3dTranspose, {"kernel_size": 2, "stride": 2, "pad_mode": "valid"}),
}  # fmt: skip


def transposed(name):
    """(network, input, target, groups, patches of the output's gradient [B, P, O, k])."""
    make_layer, options = TRANSPOSED[name]
    axes = {nn.Conv1dTranspose: 1, nn.Conv2dTranspose: 2, nn.Conv3dTranspose: 3}[make_layer]
    net = nn.SequentialCell(make_layer(INPUTS, OUTPUTS, **options))
    fill(net, 0)
    x = normal(BATCH, INPUTS, *(3, 4, 2)[:axes])
    target = normal(*net(Tensor(x)).shape, seed=1)
    kernel, stride, ones = wide(options["kernel_size"], axes), wide(options["stride"], axes), (1,) * axes
    pads = pads_of(options["pad_mode"], options.get("padding", 0), target.shape[2:], kernel, stride, ones)

    def seen(gradient):
        if "output_padding" in options:  # MindSpore appends zeros, which do not depend on the input
            gradient = gradient[:, :, :-1, :-1]
        return patches(gradient / BATCH, kernel, stride, ones, pads)

    return net, x, target, options.get("group", 1), seen


@pytest.mark.parametrize("sharing", ["pooled", "expand", "reduce"])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_transposed_convolution(name, sharing):
    """The patches are those of the output's gradient, and the input takes the place of a convolution's output."""
    net, x, target, groups, seen = transposed(name)
    target[0, :, :1] = 0.0  # some patches, if not all of them, are zero there
    a, g = grouped(positions_of(x), groups), grouped(seen(target), groups)
    optimizer = check(net, x, a, g, sharing, transpose=True, target=target)
    ((layer,), left_out) = optimizer.layers, [(item.name, item.reason) for item in optimizer.left_out]
    assert (layer.kind, layer.a_dim, layer.g_dim) == ("conv_transpose", a.shape[-1], g.shape[-1])
    why = "bias of a transposed convolution, which no input of its weight multiplies"
    assert left_out == ([("0.bias", why)] if net[0].has_bias else [])


@pytest.mark.parametrize(
    "options", [{"block_size": 3}, {"block_size": 4, "split": "block+rank", "rank": 2}, {"norms": True, "jit": True}],
    ids=["mean", "rank", "jit"],
)  # fmt: skip
def test_a_network_with_a_transposed_convolution_lowers_its_loss(options):
    net = nn.SequentialCell(
        nn.Conv2d(1, 4, 3, 2), nn.Tanh(), nn.Conv2dTranspose(4, 4, 2, 2, pad_mode="valid", has_bias=True), nn.Tanh(),
        nn.Conv2d(4, 1, 1),
    )  # fmt: skip
    fill(net, 0)
    x = normal(8, 1, 6, 6)
    optimizer, step = make(net, lr=0.1, damping=0.03, loss_fn=nn.MSELoss(), **options)
    losses = [float(step(Tensor(x), Tensor(x)).asnumpy()) for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]
    assert [layer.kind for layer in optimizer.layers] == ["conv", "conv_transpose", "conv"]


class Standardized(nn.Conv2d):
    """A convolution whose weights have mean 0 and variance 1 for each output."""

    def construct(self, x):
        w = self.weight
        w = (w - w.mean((1, 2, 3), keep_dims=True)) / ops.sqrt(w.var((1, 2, 3), keepdims=True) + 1e-10)
        output = self.conv2d(x, w)
        return self.bias_add(output, self.bias) if self.has_bias else output


def declare():
    thor.register(Standardized, kind="conv", standardized=True)


@pytest.mark.parametrize(("groups", "has_bias"), [(1, True), (2, False)])
@pytest.mark.parametrize("sharing", ["pooled", "expand"])
def test_a_convolution_of_standardised_weights_has_the_factors_of_centred_patches(sharing, groups, has_bias):
    """The exact gradient of an output's weights is P dL/dW' / sigma, less its part along W' (Qiao et al. 2019)."""
    declare()
    net = nn.SequentialCell(Standardized(INPUTS, OUTPUTS, 3, pad_mode="valid", group=groups, has_bias=has_bias))
    fill(net, 0)
    x = normal(BATCH, INPUTS, 5, 5)
    target = normal(BATCH, OUTPUTS, 3, 3, seed=1)
    w = net[0].weight.asnumpy().astype(np.float64).reshape(OUTPUTS, -1)
    sigma = w.std(1)
    a = grouped(patches(x, (3, 3), (1, 1), (1, 1), ((0, 0), (0, 0))), groups)
    a = a - a.mean(-1, keepdims=True)
    g = grouped(positions_of(target) / BATCH / sigma, groups)
    of_rows = np.einsum("cbpo,cbpi->coi", g, a).reshape(OUTPUTS, -1)
    unit = (w - w.mean(1, keepdims=True)) / sigma[:, None]
    along = unit * (of_rows * unit).sum(1, keepdims=True) / w.shape[1]
    found = gradients(net, linear_loss, Tensor(x), Tensor(target))["0.weight"].reshape(OUTPUTS, -1)
    np.testing.assert_allclose(found, of_rows - along, rtol=1e-3, atol=1e-5)
    optimizer, step = make(net, lr=0.0, split="block", block_size=512, weight_sharing=sharing, loss_fn=linear_loss)
    step(Tensor(x), Tensor(target))
    for mine, theirs in zip(optimizer.factors("0"), factors_of(a, g, sharing), strict=True):
        np.testing.assert_allclose(by_group(mine), theirs, rtol=1e-3, atol=1e-5)
    assert [item.name for item in optimizer.left_out] == (["0.bias"] if has_bias else [])


@pytest.mark.parametrize("jit", [False, True])
def test_a_network_of_standardised_convolutions_lowers_its_loss(jit):
    net = nn.SequentialCell(
        Standardized(2, 4, 3), nn.ReLU(), Standardized(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dense(64, 3)
    )
    assert [item.reason for item in thor.THOR(net, 0.1, 0.1).left_out] == ["overrides Conv2d.construct"] * 2
    thor.detach(net)
    declare()
    fill(net, 0)
    x, y = Tensor(0.05 * normal(6, 2, 4, 4)), Tensor(normal(6, 3, seed=1))
    optimizer, step = make(net, lr=0.05, damping=0.1, loss_fn=nn.MSELoss(), jit=jit)
    losses = [float(step(x, y).asnumpy()) for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0] and not optimizer.left_out
    thor.detach(net)
    assert type(net[0]) is Standardized


class LastAxis(nn.Cell):
    """What ``nn.Conv2d`` calls for channels last, made of the convolution that exists everywhere."""

    def __init__(self, options):
        super().__init__()
        self.options = options

    def construct(self, x, weight):
        y = ops.conv2d(x.transpose(0, 3, 1, 2), weight.transpose(0, 3, 1, 2), **self.options)
        return y.transpose(0, 2, 3, 1)


class AddLast(nn.Cell):
    def construct(self, x, bias):
        return x + bias


def channels_last(twin, options):
    """An ``nn.Conv2d`` of data_format "NHWC" with its twin's weights; only a GPU has its kernel."""
    conv = nn.Conv2d(INPUTS, OUTPUTS, 3, pad_mode="valid", has_bias=True, group=options["groups"])
    weight = twin.weight.asnumpy().transpose(0, 2, 3, 1)
    conv.data_format, conv.weight = "NHWC", Parameter(Tensor(weight), name="weight")
    conv.bias.set_data(Tensor(twin.bias.asnumpy()))
    conv.conv2d, conv.bias_add = LastAxis(options), AddLast()
    return conv


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("sharing", ["pooled", "expand", "reduce"])
def test_a_convolution_of_channels_last_steps_as_its_twin(sharing, groups):
    twin = nn.Conv2d(INPUTS, OUTPUTS, 3, pad_mode="valid", has_bias=True, group=groups)
    fill(twin, 0)
    before = twin.weight.asnumpy().copy()
    options = {"pad_mode": "valid", "stride": 1, "groups": groups}
    x, target = normal(BATCH, INPUTS, 5, 5), normal(BATCH, OUTPUTS, 3, 3, seed=1)
    found = []
    for conv, axes in ((channels_last(twin, options), (0, 2, 3, 1)), (twin, (0, 1, 2, 3))):
        net = nn.SequentialCell(conv)
        optimizer, step = make(
            net, split="block", block_size=512, weight_sharing=sharing, loss_fn=linear_loss, interval=1
        )
        for _ in range(2):
            step(Tensor(x.transpose(axes)), Tensor(target.transpose(axes)))
        weight = conv.weight.asnumpy()
        found.append(weight if axes[1] == 1 else weight.transpose(0, 3, 1, 2))
        assert not optimizer.left_out
    np.testing.assert_allclose(*found, **CLOSE)
    assert np.abs(found[0] - before).max() > 1e-3


def test_blocks_of_channels_last_are_those_of_order_position():
    """Their weight's own order has the kernel positions first."""
    twin = nn.Conv2d(INPUTS, OUTPUTS, 3, pad_mode="valid", has_bias=True)
    fill(twin, 0)
    x, target = normal(BATCH, INPUTS, 5, 5), normal(BATCH, OUTPUTS, 3, 3, seed=1)
    plan = BlockPlan(block_size=9, split="block", order="position")
    found = []
    last = channels_last(twin, {"pad_mode": "valid", "stride": 1, "groups": 1})
    for conv, axes, options in (
        (twin, (0, 1, 2, 3), {"block_size": plan}), (last, (0, 2, 3, 1), {"split": "block", "block_size": 9})
    ):  # fmt: skip
        net = nn.SequentialCell(conv)
        optimizer, step = make(net, loss_fn=linear_loss, **options)
        step(Tensor(x.transpose(axes)), Tensor(target.transpose(axes)))
        weight = conv.weight.asnumpy()
        found.append((weight if axes[1] == 1 else weight.transpose(0, 3, 1, 2), *optimizer.factors("0")))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


def test_what_cannot_be_declared_as_a_convolution_is_refused():
    with pytest.raises(TypeError, match="must be a subclass of nn.Conv1d, .* for kind='conv', but got Dense"):
        thor.register(nn.Dense, kind="conv")
    with pytest.raises(ValueError, match="standardized is for the kind conv, but got kind='dense'"):
        thor.register(nn.Dense, standardized=True)


def test_half_precision_reaches_the_factors_in_float32():
    net = nn.SequentialCell(nn.Conv2dTranspose(2, 3, 2, 2, pad_mode="valid"), nn.Conv2d(3, 2, 2))
    fill(net, 0)
    net.to_float(ms.float16)
    x = Tensor(normal(4, 2, 3, 3))
    optimizer, step = make(net, lr=0.01, loss_fn=lambda y, t: nn.MSELoss()(y.astype(ms.float32), t), loss_scale=128.0)
    target = Tensor(normal(4, 2, 6, 6, seed=1))
    losses = [float(step(x, target).asnumpy()) for _ in range(4)]
    assert losses[-1] < losses[0] and optimizer.factors("0")[1].dtype == np.float32
