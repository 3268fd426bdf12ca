import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from scipy.special import log_softmax

from models.cross_entropy import IGNORED, CrossEntropy

pytestmark = pytest.mark.usefixtures("each_mode")

N, C = 7, 11


def data(dtype=np.float32, scale=1.0):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, C, N).astype(np.int32)
    labels[[1, 4]] = IGNORED
    return Tensor((scale * rng.standard_normal((N, C))).astype(dtype)), Tensor(labels)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_it_is_the_mean_over_labels_that_count_of_minus_log_softmax(scale):
    scores, labels = data(scale=scale)
    counted = labels.asnumpy() >= 0
    logs = log_softmax(scores.asnumpy().astype(np.float64), -1)
    wanted = -logs[counted, labels.asnumpy()[counted]].mean()
    assert float(CrossEntropy()(scores, labels).asnumpy()) == pytest.approx(wanted, rel=1e-6)


def test_value_and_gradient_are_those_of_mindspores_own():
    scores, labels = data()
    ours, theirs = (ms.value_and_grad(loss)(scores, labels) for loss in (CrossEntropy(), nn.CrossEntropyLoss()))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-7)


def test_scores_in_half_precision_give_a_loss_in_float32():
    scores, labels = data(np.float16)
    loss, gradient = ms.value_and_grad(CrossEntropy())(scores, labels)
    assert (loss.dtype, gradient.dtype) == (ms.float32, ms.float16)
    wanted = nn.CrossEntropyLoss()(scores.astype(ms.float32), labels)
    np.testing.assert_allclose(loss.asnumpy(), wanted.asnumpy(), rtol=1e-5)
