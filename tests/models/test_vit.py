"""The vision transformer: its sizes, what its output depends on, and the same function written in NumPy."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from scipy.special import erf, softmax

import models
from tests.support.networks import fill

SMALL = {"image_size": 6, "patch_size": 3, "width": 8, "layers": 2, "heads": 2, "num_classes": 5}
IMAGES = np.random.default_rng(0).standard_normal((3, 1, 6, 6)).astype(np.float32)

pytestmark = pytest.mark.usefixtures("each_mode")


def norm(x, p, name):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * p[f"{name}.gamma"] + p[f"{name}.beta"]


def dense(x, p, name):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def attention(x, p, name, heads):
    query, key, value = (
        dense(x, p, f"{name}.{part}").reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
        for part in ("query", "key", "value")
    )
    weights = softmax(query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1]), -1)
    return (weights @ value).swapaxes(1, 2).reshape(x.shape)


def reference(images, p):
    patches = [images[:, 0, r : r + 3, c : c + 3].reshape(3, 9) for r in (0, 3) for c in (0, 3)]
    x = np.stack(patches, 1) @ p["patches.weight"].reshape(8, 9).T + p["patches.bias"]
    x = np.concatenate([np.broadcast_to(p["class_token"], (3, 1, 8)), x], 1) + p["positions"]
    for i in range(2):
        name = f"layers.{i}"
        x = x + dense(attention(norm(x, p, f"{name}.norm1"), p, f"{name}.attention", 2), p, f"{name}.projection")
        wide = dense(norm(x, p, f"{name}.norm2"), p, f"{name}.widening")
        x = x + dense(wide * (1 + erf(wide / np.sqrt(2))) / 2, p, f"{name}.narrowing")
    return dense(norm(x[:, 0], p, "norm"), p, "head")


def test_it_is_the_function_of_its_paper():
    network = fill(models.vit(**SMALL), 0).set_train(False)
    p = {weight.name: weight.asnumpy().astype(np.float64) for weight in network.get_parameters()}
    expected = reference(IMAGES.astype(np.float64), p)
    np.testing.assert_allclose(network(ms.Tensor(IMAGES)).asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_every_patch_and_every_weight_counts():
    network = fill(models.vit(**SMALL), 1).set_train(False)
    before = network(ms.Tensor(IMAGES)).asnumpy()
    for row, column in ((0, 0), (2, 5), (5, 2), (4, 4)):
        changed = IMAGES.copy()
        changed[:, :, row, column] += 1
        assert (np.abs(network(ms.Tensor(changed)).asnumpy() - before).max(1) > 1e-5).all()
    weights = ms.ParameterTuple(network.trainable_params())

    def squares(x):
        return ops.square(network(x)).sum()

    gradients = ms.grad(squares, None, weights)(ms.Tensor(IMAGES))
    silent = [w.name for w, g in zip(weights, gradients, strict=True) if not np.abs(g.asnumpy()).max() > 1e-7]
    assert all(name.endswith("key.bias") for name in silent), "a key's bias shifts all scores of a query alike"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be an int of at least 1, but got 0"),
        ({"layers": 2.0}, "layers must be an int of at least 1, but got 2.0"),
        ({"patch_size": 5}, "image_size must be a multiple of patch_size=5, but got 28"),
        ({"heads": 3}, "width must be a multiple of heads=3, but got 80"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.vit(**options)
