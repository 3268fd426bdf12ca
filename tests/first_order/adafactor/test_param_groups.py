"""Adafactor's parameter groups: options, rates and what is added, as PyTorch's."""

import numpy as np
import pytest
import torch
from mindspore import Parameter, Tensor

from first_order import Adafactor
from tests.first_order.adafactor.torch_adafactor import Torch, assert_same
from tests.first_order.arrays import arrays, make_parameters, tensors


def two_groups(p):
    first = {"params": p[:2], "lr": 0.1, "weight_decay": 0.1, "maximize": True}
    return [first, {"params": p[2:], "eps": (1e-5, 1e-2), "d": 2.0, "beta2_decay": -0.5}]


def one_each(parameters):
    return [{"params": [p]} for p in parameters]


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_groups_have_their_own_options_which_can_be_changed_and_more_can_be_added():
    shapes = [(3, 4), (3, 4), (5,), (2, 2)]
    values, extra = arrays(0, shapes), arrays(1, [(3, 4)])
    theirs, ours = Torch(values, two_groups, lr=0.03), make_parameters(values)
    optimizer = Adafactor(two_groups(ours), lr=0.03)

    def both(seed):
        g = arrays(seed, [p.shape for p in ours])
        theirs.step(g)
        optimizer(tensors(g))
        assert_same(ours, theirs, np.float64)

    both(2)
    for groups in (optimizer.param_groups, theirs.optimizer.param_groups):
        groups[0]["lr"] = 0.2
        groups[1]["weight_decay"] = 0.3
        groups[1]["maximize"] = True
    both(3)
    added = make_parameters(extra)[0]
    added.name = "extra"
    theirs.parameters.append(torch.nn.Parameter(torch.from_numpy(extra[0].copy())))
    theirs.optimizer.add_param_group({"params": [theirs.parameters[-1]], "lr": 0.4, "d": 3.0})
    ours.append(added)
    optimizer.add_param_group({"params": [added], "lr": 0.4, "d": 3.0})
    assert rates(optimizer) == [0.2, 0.03, 0.4]
    both(4)
    both(5)
    with pytest.raises(ValueError, match="extra is in another group"):
        optimizer.add_param_group({"params": [added]})


def test_groups_without_a_rate_keep_theirs_apart_as_in_pytorch():
    values = arrays(0, [(3, 4), (5,)])
    theirs, ours = Torch(values, one_each, lr=0.01), make_parameters(values)
    optimizer = Adafactor(one_each(ours), lr=0.01)
    for groups in (optimizer.param_groups, theirs.optimizer.param_groups):
        groups[0]["lr"] = 0.2
    assert rates(optimizer) == [0.2, 0.01]
    g = arrays(1, [(3, 4), (5,)])
    theirs.step(g)
    optimizer(tensors(g))
    assert_same(ours, theirs, np.float64)
    theirs.optimizer.param_groups[1]["lr"] = 0.3
    optimizer.load_state_dict(theirs.optimizer.state_dict())
    assert rates(optimizer) == [0.2, 0.3]


def test_groups_without_a_rate_share_a_schedule_and_a_function():
    shapes = [(3, 4), (5,), (2,)]
    for rate in ([0.125, 0.25], lambda: 0.125):  # which float32 holds, as it does a list
        x, theirs = make_parameters(arrays(0, shapes)), Torch(arrays(0, shapes), lr=0.125)
        optimizer = Adafactor(one_each(x[:2]), lr=rate)
        optimizer.add_param_group({"params": iter(x[2:])})  # which can be read once
        assert not optimizer.is_group_lr
        g = arrays(1, shapes)
        theirs.step(g)
        optimizer(tensors(g))
        assert_same(x, theirs, np.float64)


def test_an_added_group_leaves_the_rate_of_the_only_one_as_it_is():
    """Beside a schedule too, which makes schedules of all rates."""
    x = make_parameters(arrays(0, [(3, 4), (5,), (2,), (2,)]))
    optimizer = Adafactor(x[:1], lr=0.01)
    optimizer.param_groups[0]["lr"] = 0.005
    for added, rate in ((x[1], {}), (x[2], {"lr": [0.3, 0.4]}), (x[3], {})):
        optimizer.add_param_group({"params": [added], **rate})
    assert rates(optimizer) == [0.005, 0.01, [0.3, 0.4], 0.01]
    at_step_0 = [float(rate.asnumpy()) for rate in optimizer.get_lr()]
    np.testing.assert_allclose(at_step_0, [0.005, 0.01, 0.3, 0.01], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_constant_rate_beside_a_schedule_can_be_set_and_saved(dtype):
    x = make_parameters([each.astype(dtype) for each in arrays(0, [(3, 4), (5,)])])
    optimizer = Adafactor([{"params": x[:1]}, {"params": x[1:], "lr": [0.3, 0.4]}], lr=Tensor(0.1))
    optimizer.param_groups[0]["lr"] = 3e-7
    assert [group["lr"] for group in optimizer.state_dict()["param_groups"]] == [pytest.approx(3e-7), 0.3]
    assert float(optimizer.get_lr()[0].asnumpy()) == pytest.approx(3e-7, rel=1e-7)
    with pytest.raises(ValueError, match="lr follows a schedule"):
        optimizer.param_groups[1]["lr"] = 0.1


def test_an_added_group_leaves_the_centralization_of_the_others_as_it_is():
    x = make_parameters(arrays(0, [(3, 16)] * 3))
    optimizer = Adafactor([{"params": x[:1], "grad_centralization": True}, {"params": x[1:2]}])
    optimizer.add_param_group({"params": x[2:]})
    assert optimizer.grad_centralization_flags == (True, False, False)


def test_no_group_is_added_where_the_parameters_have_an_order_of_their_own():
    """It would get the order of the groups back, and each gradient the wrong weight."""
    x = make_parameters(arrays(0, [(3, 4)] * 3))
    optimizer = Adafactor([*one_each(x[:2]), {"order_params": x[1::-1]}])
    for owner, group in ((optimizer, {"params": x[2:]}), (Adafactor(x), {"order_params": x})):
        with pytest.raises(ValueError, match="param_group must not be added where order_params number the parameters"):
            owner.add_param_group(group)
    assert [p.name for p in optimizer.parameters] == ["w1", "w0"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"d": 0.5}, "d must"), ({"lr": -1.0}, "learning rate.*-1.0"), ({"lr": "fast"}, "lr of group 0 must.*'fast'"),
     ({"momentum": 0.9}, "'momentum'"), ({"weight_decay": None}, "weight_decay must")],
    ids=str,
)  # fmt: skip
def test_a_wrong_group_is_not_added_and_the_optimizer_goes_on_as_if_nobody_had_tried(wrong, words):
    values, g = arrays(0, [(3, 4), (5,)]), tensors(arrays(1, [(3, 4)]))
    ours, undisturbed = make_parameters(values), make_parameters(values)
    optimizer, other = Adafactor(ours[:1], lr=0.1), Adafactor(undisturbed[:1], lr=0.1)
    with pytest.raises((TypeError, ValueError, KeyError), match=words):
        optimizer.add_param_group({"params": ours[1:], **wrong})
    for one in (optimizer, other):
        one(g)
    assert len(optimizer.param_groups) == 1 and rates(optimizer) == [0.1]
    np.testing.assert_array_equal(ours[0].asnumpy(), undisturbed[0].asnumpy())


@pytest.mark.parametrize("wrong", ["a name twice", "lists of two lengths"])
def test_a_group_that_is_wrong_beside_the_others_is_not_added(wrong):
    values, lists = arrays(0, [(3, 4), (5,)]), wrong == "lists of two lengths"
    ours = make_parameters(values)
    optimizer = Adafactor([{"params": ours[:1], "lr": [0.1] * 3}] if lists else ours[:1], lr=0.1)
    added = {"params": ours[1:], "lr": [0.1] * 2}
    if not lists:
        added = {"params": [Parameter(Tensor(values[1]), name=ours[0].name)]}
    before = [p.name for p in optimizer.get_parameters()]
    with pytest.raises((RuntimeError, ValueError), match="same size" if lists else "already exists"):
        optimizer.add_param_group(added)
    optimizer.param_groups[0]["d"] = 2.0  # compiles the step anew
    optimizer(tensors(arrays(1, [(3, 4)])))
    assert [p.name for p in optimizer.get_parameters()] == before
    assert not np.array_equal(ours[0].asnumpy(), values[0])
