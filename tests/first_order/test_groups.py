"""What groups of parameters have of their own, for each optimizer."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from first_order import SOAP, Adafactor, Adam, Momentum, Muon
from tests.first_order.arrays import arrays, make_parameters, tensors

OPTIMIZERS = {"adafactor": Adafactor, "adam": Adam, "momentum": Momentum, "muon": Muon, "soap": SOAP}
SHAPES = [(4, 6), (3, 2, 2, 2), (5,)]


def centralized(gradient):
    axes = tuple(range(1, gradient.ndim))
    return gradient - gradient.mean(axes, keepdims=True) if axes else gradient


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_group_may_subtract_the_means_of_its_gradients(name):
    """On every device, and whatever the number of columns; vectors have no axis to average over."""
    values, found = arrays(0, SHAPES), []
    for own in (True, False):
        parameters = make_parameters(values)
        optimizer = OPTIMIZERS[name]([{"params": parameters, "grad_centralization": own}], 0.01)
        for step in (1, 2, 3):
            gradients = arrays(step, SHAPES)
            optimizer(tensors(gradients if own else [centralized(each) for each in gradients]))
        found.append([p.asnumpy() for p in parameters])
    for one, other, before in zip(*found, values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
        assert not np.array_equal(one, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_small_constant_rate_beside_a_schedule_is_itself(dtype):
    """nn.Optimizer adds one and subtracts it again, which rounds 1e-6 to 9.5e-7."""
    x, y = make_parameters([np.zeros(2, dtype), np.zeros(2, dtype)])
    optimizer = Momentum([{"params": [x], "lr": 1e-6}, {"params": [y], "lr": [1e-3, 1e-3]}], 0.1, 0.0)
    optimizer(tensors([np.ones(2, dtype), np.ones(2, dtype)]))
    np.testing.assert_allclose(x.asnumpy(), -1e-6, rtol=1e-12 if dtype == np.float64 else 1e-7)
    np.testing.assert_allclose(y.asnumpy(), -1e-3, rtol=1e-7)


def test_muons_adamw_may_have_a_constant_rate_beside_a_schedule():
    weights = make_parameters(arrays(0, [(2, 3), (2,)]))
    optimizer = Muon(weights, nn.cosine_decay_lr(0.0, 0.1, 10, 5, 2), weight_decay=0.0, adamw_learning_rate=1e-6)
    before = weights[1].asnumpy().copy()
    optimizer(tensors(arrays(1, [(2, 3), (2,)])))
    np.testing.assert_allclose(np.abs(weights[1].asnumpy() - before), 1e-6, rtol=1e-6)


WRONG_RATES = [
    ([0.1, -0.1], "of step 1 must be finite and at least 0, but got -0.1"),
    ([float("nan")], "of step 0 must be finite and at least 0, but got nan"),
    (Tensor(-0.1, ms.float32), "must be finite and at least 0, but got -0.1"),
    ([[0.1], [0.2]], r"must be one number, or one for each step, but has the shape \(2, 1\)"),
]


@pytest.mark.parametrize(("rate", "words"), WRONG_RATES, ids=["negative", "nan", "tensor", "nested"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_wrong_rate_is_refused_for_all_and_for_a_group(name, rate, words):
    parameters = make_parameters(arrays(0, SHAPES))
    with pytest.raises(ValueError, match=f"the learning rate.* {words}"):
        OPTIMIZERS[name](parameters, rate)
    with pytest.raises(ValueError, match=f"lr of group 0.* {words}"):
        OPTIMIZERS[name]([{"params": parameters, "lr": rate}], 0.1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_decay_is_a_number(name):
    parameters = make_parameters(arrays(0, SHAPES))
    with pytest.raises(TypeError, match="weight_decay must be a number.* but got True"):
        OPTIMIZERS[name](parameters, 0.1, weight_decay=True)
    with pytest.raises(TypeError, match="weight_decay (of group 0 )?must be a number.* but got True"):
        OPTIMIZERS[name]([{"params": parameters, "weight_decay": True}], 0.1)
