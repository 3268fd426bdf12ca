import mindspore as ms
import numpy as np
import pytest
from mindspore.nn.utils import no_init_parameters

import models


def _shapes(network):
    return {parameter.name: parameter.shape for parameter in network.trainable_params()}


@pytest.mark.parametrize(
    "factory, weights",
    [
        (models.resnet18, 11_689_512),
        (models.resnet34, 21_797_672),
        (models.resnet50, 25_557_032),
        (models.resnet101, 44_549_160),
        (models.resnet152, 60_192_808),
    ],
)
def test_number_of_weights_is_the_published_one(factory, weights):
    with no_init_parameters():
        network = factory()
    assert sum(parameter.size for parameter in network.trainable_params()) == weights


def test_every_weight_of_resnet50_has_its_published_name_and_shape():
    with no_init_parameters():
        found = _shapes(models.resnet50())

    expected = {"conv1.weight": (64, 3, 7, 7), "fc.weight": (1000, 2048), "fc.bias": (1000,)}
    expected.update({"bn1.gamma": (64,), "bn1.beta": (64,)})
    inputs = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=1):
        for block in range(blocks):
            kernels = {
                "conv1": (width, inputs, 1, 1),
                "conv2": (width, width, 3, 3),
                "conv3": (4 * width, width, 1, 1),
            }
            if block == 0:
                kernels["downsample.0"] = (4 * width, inputs, 1, 1)
            for name, shape in kernels.items():
                norm = name.replace("conv", "bn").replace("downsample.0", "downsample.1")
                expected[f"layer{stage}.{block}.{name}.weight"] = shape
                expected[f"layer{stage}.{block}.{norm}.gamma"] = shape[:1]
                expected[f"layer{stage}.{block}.{norm}.beta"] = shape[:1]
            inputs = 4 * width
    assert found == expected
    assert len([shape for shape in found.values() if len(shape) in (2, 4)]) == 54  # 53 convolutions and fc


def test_v1_5_halves_the_image_in_the_3x3_convolution():
    with no_init_parameters():
        cells = dict(models.resnet50().cells_and_names())
    for stage in (2, 3, 4):
        strides = [cells[f"layer{stage}.0.conv{number}"].stride for number in (1, 2, 3)]
        assert strides == [(1, 1), (2, 2), (1, 1)]
        assert cells[f"layer{stage}.0.downsample.0"].stride == (2, 2)
    assert cells["layer1.0.downsample.0"].stride == (1, 1)


def test_sizes_of_the_stages_and_of_the_output():
    network = models.resnet18(num_classes=7, in_channels=1).set_train(False)
    x = ms.Tensor(np.ones((2, 1, 64, 64), np.float32))
    out = network.maxpool(network.relu(network.bn1(network.conv1(x))))
    sizes = [out.shape]
    for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
        out = stage(out)
        sizes.append(out.shape)
    assert sizes == [(2, 64, 16, 16), (2, 64, 16, 16), (2, 128, 8, 8), (2, 256, 4, 4), (2, 512, 2, 2)]
    logits = network(x)
    assert logits.shape == (2, 7) and np.isfinite(logits.asnumpy()).all()


def test_initial_scales():
    """He: variance 2 / fan_out for the normal distribution, 2 / fan_in for the uniform one, which is bounded."""
    ms.set_seed(0)
    normal = models.resnet18(init="he_normal").layer2[0].conv1.weight.asnumpy()  # 128 filters of 64 x 3 x 3
    uniform = models.resnet18(init="he_uniform").layer2[0].conv1.weight.asnumpy()
    assert normal.var() == pytest.approx(2 / (128 * 9), rel=0.03)
    assert uniform.var() == pytest.approx(2 / (64 * 9), rel=0.03)
    assert np.abs(uniform).max() <= np.sqrt(6 / (64 * 9)) < np.abs(normal).max()


def test_zero_init_last_makes_each_block_its_shortcut():
    network = models.resnet18(zero_init_last=True).set_train(False)
    block = network.layer1[1]
    x = np.random.default_rng(0).random((1, 64, 4, 4), np.float32)  # positive: the last ReLU leaves it
    np.testing.assert_array_equal(block(ms.Tensor(x)).asnumpy(), x)
    assert np.ptp(models.resnet18().layer1[1].last_norm.gamma.asnumpy()) == 0
    zeros = [cell.last_norm.gamma.asnumpy() for _, cell in network.cells_and_names() if hasattr(cell, "last_norm")]
    assert len(zeros) == 8 and not np.concatenate(zeros).any()


@pytest.mark.parametrize("factory, block", [
    (lambda: models.resnet50(zero_init_last=True), lambda network: network.layer1[1]),
    (lambda: models.resnet8(width=4), lambda network: network.stage1[0]),
], ids=["bottleneck", "of CIFAR"])  # fmt: skip
def test_what_a_block_adds_is_added_to_its_input(factory, block):
    network = factory().set_train(False)
    found = block(network)
    if hasattr(found, "norm2"):
        found.norm2.gamma.set_data(ms.ops.zeros_like(found.norm2.gamma))
    x = np.random.default_rng(0).random((1, found.conv1.in_channels, 4, 4), np.float32)  # positive: ReLU leaves it
    np.testing.assert_array_equal(found(ms.Tensor(x)).asnumpy(), x)


def test_unknown_init_is_refused():
    with pytest.raises(ValueError, match="init must be one of he_normal, he_uniform, and is 'xavier'"):
        models.resnet18(init="xavier")
