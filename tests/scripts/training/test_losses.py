"""The losses of a reconstruction: a sum over an image's pixels, whatever the shape that the network gives it."""

import mindspore as ms
import numpy as np
import pytest

from scripts.settings.yaml_config import validate
from scripts.training.networks import build_loss


@pytest.mark.parametrize("loss", ["squared_error", "binary_cross_entropy"])
@pytest.mark.parametrize("shape", [(5, 24), (5, 1, 4, 6), (5, 2, 3, 4)])
def test_a_reconstruction_is_summed_over_pixels_and_averaged_over_examples(loss, shape):
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=(5, 24)), rng.uniform(size=(5, 24))
    each = {
        "squared_error": (outputs - targets) ** 2,
        "binary_cross_entropy": np.log1p(np.exp(outputs)) - targets * outputs,
    }[loss]
    inputs = (ms.Tensor(value.reshape(of).astype(np.float32)) for value, of in ((outputs, shape), (targets, (5, 24))))
    found = build_loss(validate({"network": "autoencoder", "loss": loss, "device": "CPU"}))(*inputs)
    np.testing.assert_allclose(float(found), each.sum(1).mean(), rtol=1e-5)
