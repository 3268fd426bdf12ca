"""Networks of another author, from the package mindcv, are trained as they come."""

import mindspore as ms
import numpy as np
import pytest
from mindcv.models import mobilenet_v1_025
from mindcv.models.convnext import ConvNeXt
from mindspore import Tensor, nn

import thor

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _seeded():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)  # a step is compiled in either mode; outputs are not worth a compilation
    ms.set_seed(0)
    yield
    ms.set_context(mode=before)


def tinted(count=8, classes=4):
    """Noise, tinted by its class."""
    labels = np.arange(count) % classes
    tint = np.multiply.outer(labels, [1.0, -0.5, 0.3])[:, :, None, None]
    images = 0.3 * np.random.default_rng(0).standard_normal((count, 3, 32, 32)) + tint
    return Tensor(images.astype(np.float32)), Tensor(labels.astype(np.int32))


def described(net):
    """What a network is made of: its Cells with their classes, what THOR has put into them, names of its Parameters."""
    cells = [
        (name, type(cell), [key for key in vars(cell) if key.startswith("thor")])
        for name, cell in net.cells_and_names()
    ]
    return cells, [parameter.name for parameter in net.get_parameters()]


def test_mobilenet_learns_and_is_given_back():
    """Thirteen depthwise and fourteen other convolutions, each with BatchNorm, and a classifier."""
    ms.set_seed(1)
    net, (images, labels) = mobilenet_v1_025(num_classes=4), tinted()
    before = described(net)
    optimizer = thor.THOR(net, 0.02, 0.03, interval=5, clip=1e-2, refresh=thor.TraceRule.thor_nt())
    depthwise = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.Conv2d) and cell.group > 1]
    assert len(depthwise) == 13 and all(cell.weight.shape[1] == 1 for cell in depthwise)
    assert [layer.kind for layer in optimizer.layers] == 27 * ["conv"] + ["dense"]
    norms = [name for name, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    assert [layer.name for layer in optimizer.left_out] == norms and len(norms) == 27

    step = thor.TrainStep(net, nn.CrossEntropyLoss(), optimizer)
    losses = [float(step(images, labels).asnumpy()) for _ in range(10)]
    assert losses[-1] < 0.5 * losses[0]
    assert all(layer.refreshes == 2 for layer in optimizer.layers)

    net.set_train(False)
    captured = net(images).asnumpy()
    assert thor.detach(net) == 28
    assert described(net) == before
    np.testing.assert_allclose(net(images).asnumpy(), captured, rtol=1e-4, atol=1e-5)


def test_what_is_left_out_of_a_convnext():
    """LayerNorms that compute in their own way, and blocks with a bare Parameter: each is named, with a reason."""
    net = ConvNeXt(3, 4, depths=[1, 1, 1, 1], dims=[8, 8, 16, 16])
    before = described(net)
    optimizer = thor.THOR(net, 0.02, 0.03, norms=True)
    assert sorted(layer.kind for layer in optimizer.layers) == 8 * ["conv"] + 9 * ["dense"]
    reasons = {(layer.type, layer.reason) for layer in optimizer.left_out}
    assert reasons == {
        ("ConvNextLayerNorm", "overrides LayerNorm.construct"),
        ("Block", "this type has no factors here"),
    }
    assert len(optimizer.left_out) == 9 + 4
    thor.detach(net)
    assert described(net) == before
