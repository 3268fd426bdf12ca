import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import models


@pytest.mark.parametrize(
    "factory, image, outputs, weights",
    [
        (models.smallconv, (1, 28, 28), 10, 103_018),
        (models.lenet5, (1, 28, 28), 10, 61_706),
        (models.autoencoder, (1, 28, 28), 784, 2_837_314),
        (models.vit, (1, 28, 28), 10, 317_770),
        (models.resnet8, (3, 32, 32), 10, 78_042),
        (models.resnet20, (3, 32, 32), 10, 269_722 + 2_752),
        (models.resnet56, (3, 32, 32), 10, 853_018 + 2_752),
    ],
)
def test_output_shape_and_number_of_weights(factory, image, outputs, weights):
    network = factory().set_train(False)
    result = network(ms.Tensor(np.zeros((2, *image), np.float32)))
    assert result.shape == (2, outputs)
    assert np.isfinite(result.asnumpy()).all()
    assert sum(weight.size for weight in network.trainable_params()) == weights


def test_lenet_takes_both_image_sizes():
    network = models.lenet5(num_classes=7, in_channels=3, image_size=32)
    assert network(ms.Tensor(np.zeros((2, 3, 32, 32), np.float32))).shape == (2, 7)
    with pytest.raises(ValueError, match="image_size must be 28 or 32, and is 30"):
        models.lenet5(image_size=30)


def test_a_narrower_residual_network_has_its_widths_in_proportion():
    network = models.resnet8(width=4)
    assert [network.conv1.out_channels, network.fc.in_channels] == [4, 16]
    with pytest.raises(ValueError, match="width must be an int of at least 1, but got 0"):
        models.resnet8(width=0)


def test_averages_of_a_residual_network_can_be_shorter():
    norms = [cell for _, cell in models.resnet8(width=2, norm_momentum=0.6).cells_and_names()
             if isinstance(cell, nn.BatchNorm2d)]  # fmt: skip
    assert len(norms) == 9
    before = norms[0].moving_mean.asnumpy().copy()
    x = Tensor(np.random.default_rng(0).standard_normal((4, 2, 5, 5)).astype(np.float32) + 2)
    for norm in (n for n in norms if n.num_features == 2):
        norm.set_train()(x)
        expected = 0.6 * before + 0.4 * x.asnumpy().mean((0, 2, 3))
        np.testing.assert_allclose(norm.moving_mean.asnumpy(), expected, rtol=1e-5)
    for wrong in (1, -0.1, True, "0.9"):
        with pytest.raises(ValueError, match="norm_momentum must be a number of at least 0 and less than 1"):
            models.resnet8(norm_momentum=wrong)


@pytest.mark.parametrize("factory, layers", [(models.resnet20, 20), (models.resnet32, 32), (models.resnet44, 44)])
def test_depth_is_in_the_name(factory, layers):
    kernels = [p for p in factory().trainable_params() if p.ndim in (2, 4) and "shortcut" not in p.name]
    assert len(kernels) == layers
