"""float16 weights: arithmetic in float32, rounded once a step; and what is no number is not hidden."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from first_order import Adafactor, Adam, Momentum, adafactor_init, adafactor_update, sparse_adam_update

MADE = {
    "adam": lambda weights, lr=0.1, **more: Adam(weights, lr, **more),
    "momentum": lambda weights, lr=1000.0, **more: Momentum(weights, lr, **more),
    "nesterov": lambda weights, lr=1000.0, **more: Momentum(weights, lr, mode="nesterov", **more),
}


def moved(kind, dtype, gradient, scale, weight=0.0, **more):
    parameter = Parameter(Tensor(np.full((2, 3), weight), dtype), name="w")
    optimizer = MADE[kind]([parameter], loss_scale=scale, **more)
    optimizer((Tensor(np.full((2, 3), gradient * scale), dtype),))
    return parameter.asnumpy().astype(np.float32)


@pytest.mark.parametrize("kind", MADE)  # Adafactor's eps1 is the type's own, as PyTorch's
@pytest.mark.parametrize("gradient", [2e-8, 3.3e-7])
def test_a_loss_scale_saves_gradients_that_float16_does_not_hold(kind, gradient):
    expected = moved(kind, ms.float32, gradient, 2.0**16)
    assert np.abs(expected).max() > 1e-6
    np.testing.assert_allclose(moved(kind, ms.float16, gradient, 2.0**16), expected, rtol=2e-3, atol=6e-8)


@pytest.mark.parametrize("kind", ["adam", "momentum"])
@pytest.mark.parametrize("groups", [False, True])
def test_weight_decay_is_that_of_float32(kind, groups):
    def after(dtype):
        parameter = Parameter(Tensor(np.full(3, 0.75), dtype), name="w")
        weights = [{"params": [parameter], "weight_decay": 0.01}] if groups else [parameter]
        optimizer = MADE[kind](weights) if groups else MADE[kind](weights, weight_decay=0.01)
        optimizer((Tensor(np.full(3, 1e-4), dtype),))
        return parameter.asnumpy().astype(np.float32)

    np.testing.assert_allclose(after(ms.float16), after(ms.float32), rtol=3e-4)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("dtype", [ms.float16, ms.float32, ms.float64])
@pytest.mark.parametrize(("groups", "scale"), [(False, 8.0), (True, 1.0)])
def test_weight_decay_is_added_to_the_gradient(kind, dtype, groups, scale):
    """L2, not decoupled: two steps are those of gradients that have the decay times the weight in them."""
    decay = {"weight_decay": 0.1}
    ours, theirs, without = (Parameter(Tensor([0.75, -0.5, 0.9], dtype), name="w") for _ in range(3))
    weights = [{"params": [ours], **decay}] if groups else [ours]
    optimizer = MADE[kind](weights, loss_scale=scale, lr=0.1, **({} if groups else decay))
    plain, none = MADE[kind]([theirs], lr=0.1), MADE[kind]([without], lr=0.1)
    for gradient in ([0.02, 0.07, 0.1], [-0.15, 0.2, -0.3]):
        g = np.array(gradient)
        optimizer((Tensor(g * scale, dtype),))
        plain((Tensor(g + 0.1 * theirs.asnumpy(), dtype),))
        none((Tensor(g, dtype),))
    tolerance = 1e-3 if dtype == ms.float16 else 1e-6
    np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=tolerance, atol=tolerance)
    assert (np.abs(without.asnumpy() - theirs.asnumpy()) > 3 * tolerance).all()


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_repeated_rows_of_float16_add_up_in_float32(scale):
    rows, zero = 4096, np.zeros((2, 1), np.float16)
    indices = np.zeros(rows, np.int32)
    _, m, _ = sparse_adam_update(zero, zero, zero, np.ones((rows, 1), np.float16), indices, step=1, beta1=0.0)
    assert m.asnumpy()[0, 0] == 4096
    parameter = Parameter(Tensor(zero), name="w")
    optimizer = Adam([parameter], 0.1, loss_scale=scale)
    values = Tensor(np.full((rows, 1), 30.0, np.float16))
    optimizer(((values, Tensor(indices)),))
    np.testing.assert_allclose(parameter.asnumpy(), [[-0.1], [0.0]], rtol=1e-3)


def test_a_gradient_that_is_no_number_shows():
    """PyTorch's clamp keeps it; a guard that turned it into eps would move all weights by garbage."""
    ones = np.ones((3, 3), np.float32)
    bad = ones.copy()
    bad[0, 1] = np.nan
    parameter = Parameter(Tensor(ones), name="w")
    optimizer = Adafactor([parameter], 0.1)
    optimizer((Tensor(bad),))
    assert np.isnan(parameter.asnumpy()).all()
    found, _ = adafactor_update(ones, adafactor_init(ones), bad, step=1, lr=0.1)
    assert np.isnan(found.asnumpy()).all()
    overflowing = ones.copy()
    overflowing[0, 1] = 3e19  # its square is no number of float32
    parameter = Parameter(Tensor(ones), name="w")
    Adafactor([parameter], 0.1)((Tensor(overflowing),))
    assert np.isnan(parameter.asnumpy()).any()
    vector, found = np.ones(3, np.float32), np.float32([1.0, np.nan, 1.0])
    found, _ = adafactor_update(vector, adafactor_init(vector), found, step=1, lr=0.1)
    np.testing.assert_array_equal(np.isnan(found.asnumpy()), [False, True, False])


def test_an_lr_that_is_read_from_a_function_cannot_be_set():
    parameter = Parameter(Tensor(np.ones(3, np.float32)), name="w")
    optimizer = Adafactor([parameter], lambda: 0.1)
    with pytest.raises(ValueError, match="follows a schedule or a function and cannot be set"):
        optimizer.param_groups[0]["lr"] = 0.5
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)


def test_a_schedule_is_saved_as_the_number_that_comes_next():
    parameter = Parameter(Tensor(np.ones(3, np.float32)), name="w")
    optimizer = Adafactor([parameter], [0.1, 0.2, 0.3])
    optimizer((Tensor(np.ones(3, np.float32)),))
    state = optimizer.state_dict()
    assert state["param_groups"][0]["lr"] == 0.2
    other = Adafactor([Parameter(Tensor(np.ones(3, np.float32)), name="w")], 0.7)
    other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.2
    for _ in range(2):
        optimizer((Tensor(np.ones(3, np.float32)),))
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.3, "at the end of the list"


def test_numbers_beside_a_list_are_saved_as_they_were_given():
    weights = [Parameter(Tensor(np.ones(3, np.float32)), name=name) for name in "abc"]
    cosine = nn.CosineDecayLR(0.1, 0.2, 4)
    rates = (0.1, [0.3, 0.4], cosine)
    optimizer = Adafactor([{"params": [w], "lr": rate} for w, rate in zip(weights, rates, strict=True)], 0.7)
    found = [group["lr"] for group in optimizer.state_dict()["param_groups"]]
    assert found[:2] == [0.1, 0.3] and found[2] == pytest.approx(0.2)


def test_float16_that_is_added_later_and_float16_gradients_of_float32_weights():
    """Whether the loss scale saves a gradient depends on that gradient, and not on what else is optimized."""
    scale, small, more = 2.0**16, 2e-8, {"eps": (1e-12, 1e-3)}
    wide, half = (Parameter(Tensor(np.ones(3), dtype), name=str(dtype)) for dtype in (ms.float32, ms.float16))
    optimizer = Adafactor([wide], 0.1, loss_scale=scale, **more)
    optimizer.add_param_group({"params": [half], **more})
    gradients = [Tensor(np.full(3, small * scale), dtype) for dtype in (ms.float32, ms.float16)]
    optimizer(tuple(gradients))
    np.testing.assert_allclose(half.asnumpy(), wide.asnumpy(), rtol=1e-3)
    assert half.asnumpy()[0] < 0.95
    weight = Parameter(Tensor(np.zeros(3, np.float32)), name="w")
    Momentum([weight], 1000.0, loss_scale=scale)((gradients[1],))
    np.testing.assert_allclose(weight.asnumpy(), -1000 * small, rtol=1e-3)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize(("of_weight", "of_gradient"), [(ms.float32, ms.float16), (ms.float64, ms.float32)])
def test_gradients_of_another_type_may_have_weight_decay(kind, of_weight, of_gradient):
    gradient, found = Tensor([0.25, -0.5], of_gradient), []
    for given in (gradient, gradient.astype(of_weight)):
        weight = Parameter(Tensor([0.75, -0.5], of_weight), name="w")
        MADE[kind]([weight], weight_decay=0.1)((given,))
        found.append(weight.asnumpy())
    np.testing.assert_array_equal(*found)


def test_a_pair_of_arrays_and_a_state_that_is_none_are_told_of():
    parameter = Parameter(Tensor(np.ones((3, 1), np.float32)), name="w")
    optimizer = Adam([parameter])
    with pytest.raises(TypeError, match="values and indices of w must be Tensors, but got ndarray and ndarray"):
        optimizer(((np.ones((1, 1), np.float32), np.array([0])),))
    with pytest.raises(TypeError, match="state must be a dictionary"):
        optimizer.load_state_dict(None)
