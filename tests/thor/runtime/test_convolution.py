import itertools

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import thor
from tests.support import networks, reference
from thor.runtime import convolution
from thor.runtime.geometry import geometry_of

KERNELS = [1, (3, 2)]
PADDINGS = [("same", 0), ("valid", 0), ("pad", 1), ("pad", (2, 0, 1, 3))]
STRIDES = [1, (2, 1)]
DILATIONS = [1, (1, 2)]
GROUPS = [1, 2, 4]  # 4: depthwise
PRODUCT = list(itertools.product(KERNELS, PADDINGS, STRIDES, DILATIONS, GROUPS))


def make(kernel, padding, stride, dilation, group, has_bias=True):
    conv = nn.Conv2d(
        4, 8, kernel, stride, pad_mode=padding[0], padding=padding[1], dilation=dilation, group=group, has_bias=has_bias
    )
    rng = np.random.default_rng(5)
    for parameter in conv.trainable_params():
        parameter.set_data(Tensor(rng.standard_normal(parameter.shape).astype(np.float32)))
    return conv


def image(rows=6, columns=7):
    return Tensor(np.random.default_rng(2).standard_normal((2, 4, rows, columns)).astype(np.float32))


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_a_forward_pass_as_patches_equals_the_native_convolution(case):
    conv, x = make(*case), image()
    native = conv(x).asnumpy()
    assert convolution.use_patches(conv) == 1
    assert type(conv) is convolution.PatchConv2d
    np.testing.assert_allclose(conv(x).asnumpy(), native, rtol=1e-4, atol=1e-4)  # up to 24 products of unit size


@pytest.mark.parametrize("case", PRODUCT[::5], ids=str)
def test_the_patches_and_their_order_equal_the_reference(case):
    conv, x = make(*case), image()
    geometry = geometry_of(conv)
    seen = reference.patches(
        x.asnumpy(), geometry.kernel, geometry.stride, geometry.dilation, geometry.padding(*x.shape[2:])
    )
    batch, rows, columns = seen.shape[:3]
    assert geometry.output_size(*x.shape[2:]) == (rows, columns)
    ours = geometry(x).asnumpy().transpose(0, 2, 1).reshape(batch, rows, columns, 4, *geometry.kernel)
    np.testing.assert_array_equal(ours, seen.astype(np.float32))
    bias = conv.bias.asnumpy()[:, None, None]
    expected = reference.convolve(seen, conv.weight.asnumpy(), conv.group) + bias
    np.testing.assert_allclose(conv(x).asnumpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [5, 6, 7])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_same_padding_is_mindspores_for_odd_and_even_sizes(kernel, stride, size):
    conv = nn.Conv2d(4, 8, kernel, stride, pad_mode="same")
    x = image(size, size + 1)
    native = conv(x).asnumpy()
    convolution.use_patches(conv)
    np.testing.assert_allclose(conv(x).asnumpy(), native, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [PRODUCT[-1], PRODUCT[0]], ids=str)
def test_gradients_as_patches_equal_the_native_ones(case, mode):
    conv, x = make(*case), image()
    weights = conv.trainable_params()

    def forward(x):
        return (conv(x) ** 2).sum()

    def both():
        _, (by_x, by_weights) = ms.value_and_grad(forward, 0, weights)(x)
        return [by_x, *by_weights]

    native = both()
    convolution.use_patches(conv)
    for ours, theirs in zip(both(), native, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=1e-4, atol=1e-3)


def test_changing_to_patches_keeps_everything_else_and_can_be_undone():
    net = nn.SequentialCell(make(*PRODUCT[0]), nn.ReLU(), nn.Conv2d(8, 4, 1))
    names = [p.name for p in net.get_parameters()]
    before = {p.name: p.asnumpy().copy() for p in net.get_parameters()}
    assert convolution.use_patches(net) == 2
    assert all(isinstance(net[i], nn.Conv2d) for i in (0, 2))
    assert [p.name for p in net.get_parameters()] == names
    assert all((p.asnumpy() == before[p.name]).all() for p in net.get_parameters())
    assert thor.detach(net) == 2
    assert all(type(net[i]) is nn.Conv2d and "thor_geometry" not in vars(net[i]) for i in (0, 2))


def test_a_subclass_of_conv2d_is_left_alone():
    class Scaled(nn.Conv2d):
        def construct(self, x):
            return 2 * super().construct(x)

    conv = Scaled(2, 3, 1)
    assert convolution.use_patches(conv) == 0
    assert type(conv) is Scaled


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_mixed_precision_trains_convolutions_that_run_as_patches(monkeypatch, level):
    """A layer of float16 casts its input; its weights may be float32."""
    monkeypatch.setenv("THOR_CONVOLUTION", "patches")
    net = ms.amp.auto_mixed_precision(networks.Mixed(), level, ms.float16)

    def loss_fn(found, y):
        return networks.squared_error(found.astype(ms.float32), y)

    _, step = networks.make(net, jit=True, loss_fn=loss_fn, loss_scale=64.0, damping=10.0)
    x, y = networks.images()
    losses = [float(step(x, y).asnumpy()) for _ in range(4)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    conv = make(3, ("same", 0), 1, 1, 1).to_float(ms.float16)
    native = conv(image()).asnumpy()
    thor.device.fast_convolutions(conv)
    assert type(conv) is convolution.PatchConv2d
    np.testing.assert_allclose(conv(image()).asnumpy(), native, rtol=1e-2, atol=1e-2)
