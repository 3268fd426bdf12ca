"""One number of a tensor tells whether all of it is finite, by either of two kernels."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from tests.support.networks import Mlp, batch, make, values
from thor.runtime import device
from thor.step import finite_check

SUMMARIES = {"squares": finite_check.half_square, "sum": finite_check.total}
BAD = {"nan": [np.nan], "inf": [np.inf], "-inf": [-np.inf], "inf and -inf": [np.inf, -np.inf]}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "operator by operator"])
@pytest.mark.parametrize("dtype", [ms.float32, ms.float16], ids=str)
@pytest.mark.parametrize("summary", SUMMARIES)
def test_a_summary_is_finite_if_and_only_if_every_entry_is(summary, dtype, compiled):
    function = ms.jit(SUMMARIES[summary]) if compiled else SUMMARIES[summary]
    for shape in ((1,), (7,), (3, 50), (2, 3, 4, 5)):
        good = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 100
        assert np.isfinite(function(Tensor(good).astype(dtype)).asnumpy())
        for bad in BAD.values():
            for at in {0, good.size // 2, good.size - 1}:
                spoilt = good.copy()
                spoilt.reshape(-1)[at : at + len(bad)] = bad[: good.size - at]
                assert not np.isfinite(function(Tensor(spoilt).astype(dtype)).asnumpy())


@pytest.mark.parametrize("summary", SUMMARIES)
def test_the_half_precision_of_a_tensor_does_not_bound_its_summary(summary):
    """Float16 holds its largest number, and neither the sum of seven of them nor their squares."""
    assert np.isfinite(SUMMARIES[summary](Tensor(np.full(7, 65504, np.float16))).asnumpy())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_is_the_same_bit_for_bit_with_either_kernel(accumulate, monkeypatch):
    found = []
    for quickly in (True, False):
        monkeypatch.setattr(device, "l2_loss_is_fast", lambda quickly=quickly: quickly)
        assert finite_check.finiteness_summary() is SUMMARIES["squares" if quickly else "sum"]
        net = Mlp()
        optimizer, step = make(net, momentum=0.9, interval=2, accumulate=accumulate)
        losses = []
        for k in range(4 * accumulate):
            x, y = batch(seed=k)
            losses.append(step(x * np.inf if k == 3 else x, y).asnumpy())
        found.append((losses, values(net) | values(optimizer)))
        assert int(optimizer.skipped_steps.asnumpy()[0]) == 1
    (losses, one), (others, other) = found
    np.testing.assert_array_equal(losses, others)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
