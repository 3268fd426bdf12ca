"""Adafactor against PyTorch's own: numbers, state dictionary and hooks."""

import mindspore as ms
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn

from first_order import Adafactor, adafactor_init, adafactor_update
from first_order.adafactor.buckets import make_buckets
from first_order.adafactor.factored_moments import Products, Reductions, StackedReductions
from tests.first_order.adafactor.torch_adafactor import Torch, assert_same
from tests.first_order.arrays import SHAPES, arrays, assert_close, make_parameters, tensors

MORE_SHAPES = [*SHAPES, (7,), (3, 5), (30, 20), (1, 1), (4, 2, 1, 1)]


hypers = st.fixed_dictionaries({
    "lr": st.floats(1e-4, 1.0), "beta2_decay": st.floats(-1.0, 0.0), "d": st.floats(1.0, 3.0),
    "eps": st.tuples(st.none() | st.floats(1e-9, 1e-2), st.floats(1e-6, 0.1)), "weight_decay": st.floats(0, 0.5),
    "maximize": st.booleans(),
})  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(options=hypers, shape=st.sampled_from(MORE_SHAPES), dtype=st.sampled_from([np.float32, np.float64]),
       seed=st.integers(0, 99), exponent=st.integers(-3, 2))  # fmt: skip
def test_the_update_is_pytorchs(options, shape, dtype, seed, exponent):
    x = arrays(seed, [shape], dtype)[0]
    theirs, state = Torch([x], **options), adafactor_init(x)
    for step in range(1, 5):
        (g,) = arrays(seed + step, [shape], dtype, scale=10.0**exponent)
        theirs.step([g])
        x, state = adafactor_update(x, state, g, step, **options)
    assert_close(x, theirs.values[0], dtype, factor=2.0)
    for name, value in theirs.optimizer.state[theirs.parameters[0]].items():
        if name != "step":
            assert_close(state[name.removesuffix("_var")], value.numpy(), dtype, factor=2.0)


@pytest.mark.parametrize(
    ("dtype", "foreach", "mode"),
    [
        (np.float64, None, ms.GRAPH_MODE), (np.float64, False, ms.PYNATIVE_MODE), (np.float32, True, ms.PYNATIVE_MODE),
        (np.float32, None, ms.GRAPH_MODE), (np.float16, True, ms.PYNATIVE_MODE),
    ],
)  # fmt: skip
def test_the_optimizer_is_pytorchs_over_50_steps(dtype, foreach, mode):
    ms.set_context(mode=mode)
    options = {"lr": 0.05, "d": 1.2, "weight_decay": 0.05}
    values = arrays(0, MORE_SHAPES, dtype)
    theirs, ours = Torch(values, foreach=foreach, **options), make_parameters(values)
    optimizer = Adafactor(ours, foreach=foreach, **options)
    for step in range(50):
        gradients = arrays(step + 1, MORE_SHAPES, dtype)
        theirs.step(gradients)
        optimizer(tensors(gradients))
    assert_same(ours, theirs, dtype)


def test_zero_and_tiny_gradients_meet_both_clamps():
    """V below eps1^2, and its mean row below eps1, which a product of roots must clamp alike."""
    x = arrays(0, [(4, 3), (5,)], np.float32)
    theirs, ours = Torch(x, lr=0.1), make_parameters(x)
    optimizer = Adafactor(ours, lr=0.1)
    for scale in (0.0, 1e-9, 1e-6, 1e-3):
        g = arrays(1, [(4, 3), (5,)], np.float32, scale)
        g[0][1] = 0
        theirs.step(g)
        optimizer(tensors(g))
        assert_same(ours, theirs, np.float32)


@pytest.mark.parametrize("shape", [(3, 5), (30, 20), (2, 3, 4), (40, 2, 3), (6,), ()])
@pytest.mark.parametrize("count", [0, 3])
def test_both_ways_of_averaging_agree(shape, count):
    """Products with constants, as on a CPU, and reductions, as elsewhere."""
    x = Tensor(arrays(0, [(count, *shape) if count else shape])[0])
    products, reductions = Products(shape, count, ms.float64), StackedReductions() if count else Reductions()
    names = ["root_mean_square"] + (["of_rows", "of_columns"] if len(shape) > 1 else [])
    for name in names:
        ours, plain = getattr(products, name)(x).asnumpy(), getattr(reductions, name)(x).asnumpy()
        np.testing.assert_allclose(ours, plain, rtol=1e-13, atol=1e-15)
        assert ours.shape == plain.shape
    if len(shape) > 1:
        rows = reductions.of_rows(x)
        np.testing.assert_allclose(
            products.of_row_factor(rows).asnumpy(), reductions.of_row_factor(rows).asnumpy(), rtol=1e-13, atol=1e-15
        )


def test_the_update_works_inside_a_graph_and_takes_step_0_for_1():
    x, g = arrays(0, [(3, 4)] * 2)
    state = adafactor_init(x)

    @ms.jit
    def compiled(x, row, col, g, step):
        moved, new = adafactor_update(x, {"row": row, "col": col}, g, step, lr=0.5, maximize=True)
        return moved, new["row"]

    wanted, new = adafactor_update(x, state, g, 1, lr=0.5, maximize=True)
    for step in (0, 1):
        ours = compiled(Tensor(x), state["row"], state["col"], Tensor(g), Tensor(step))
        np.testing.assert_allclose(ours[0].asnumpy(), wanted.asnumpy(), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(ours[1].asnumpy(), new["row"].asnumpy(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("foreach", [True, False])
def test_state_dictionaries_move_to_pytorch_and_back(foreach):
    values, g = arrays(0, MORE_SHAPES), [arrays(k + 1, MORE_SHAPES) for k in range(4)]
    ours = make_parameters(values)
    optimizer = Adafactor(ours, lr=0.05, weight_decay=0.1, foreach=foreach)
    assert optimizer.state_dict()["state"] == {}
    for step in g[:2]:
        optimizer(tensors(step))
    theirs = Torch([p.asnumpy() for p in ours], lr=0.5)
    theirs.optimizer.load_state_dict(optimizer.state_dict(torch.from_numpy))
    theirs.step(g[2])
    optimizer(tensors(g[2]))
    assert_same(ours, theirs, np.float64)
    fresh = make_parameters(theirs.values)
    resumed = Adafactor(fresh, lr=0.7)
    resumed.load_state_dict(theirs.optimizer.state_dict())
    assert resumed.param_groups[0]["weight_decay"] == 0.1 and resumed.param_groups[0]["lr"] == 0.05
    assert int(resumed.global_step.asnumpy()[0]) == 3
    theirs.step(g[3])
    resumed(tensors(g[3]))
    assert_same(fresh, theirs, np.float64)


def test_a_state_dictionary_with_a_list_of_rates_is_loaded_and_the_list_stays():
    rates, g = [0.1, 0.2, 0.3], [tensors(arrays(k + 1, [(3, 2)])) for k in range(3)]
    whole, first = (make_parameters(arrays(0, [(3, 2)])) for _ in range(2))
    undisturbed, optimizer = Adafactor(whole, lr=rates), Adafactor(first, lr=rates)
    for step in g:
        undisturbed(step)
    for step in g[:2]:
        optimizer(step)
    resumed = Adafactor(first, lr=rates)
    resumed.load_state_dict(optimizer.state_dict())
    resumed(g[2])
    np.testing.assert_array_equal(first[0].asnumpy(), whole[0].asnumpy())


def test_named_parameters_are_in_the_state_dictionary_as_in_pytorch():
    net = nn.Dense(3, 2)
    optimizer = Adafactor(net.parameters_and_names())
    theirs = torch.optim.Adafactor(list(torch.nn.Linear(3, 2).named_parameters()))
    assert optimizer.state_dict()["param_groups"] == theirs.state_dict()["param_groups"]


def test_step_takes_a_closure_and_returns_its_loss():
    x = make_parameters(arrays(0, [(3, 2)], np.float32))
    optimizer = Adafactor(x, lr=0.1)

    def closure():
        return (x[0] ** 2).sum(), 2 * x[0]

    losses = [float(optimizer.step(closure).asnumpy()) for _ in range(5)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    with pytest.raises(TypeError, match=r"closure must return \(loss, gradients\).* but returned Tensor"):
        optimizer.step(lambda: x[0].sum())
    with pytest.raises(TypeError, match="closure must be a function, but got 3"):
        optimizer.step(3)


def test_hooks_run_where_pytorchs_do_in_the_same_order():
    """The same hooks on both optimizers write the same log."""
    values = arrays(0, [(2, 2)])
    x = make_parameters(values)
    theirs, ours = Torch(values), Adafactor(x)
    logs, handles = [], []
    for optimizer in (ours, theirs.optimizer):
        log = []
        logs.append(log)

        def note(name, log=log):
            return lambda *_: log.append(name)

        kinds = ["state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"]
        for kind in kinds:
            register = getattr(optimizer, f"register_{kind}_hook")
            handles += [register(note(f"{kind} 1")), register(note(f"{kind} 0"), prepend=True)]
        handles += [optimizer.register_step_pre_hook(note("before")), optimizer.register_step_post_hook(note("after"))]
    for rounds in range(2):
        ours(tensors(arrays(1, [(2, 2)])))
        theirs.step(arrays(1, [(2, 2)]))
        for optimizer in (ours, theirs.optimizer):
            optimizer.load_state_dict(optimizer.state_dict())
        assert logs[0] == logs[1] and len(logs[0]) == 10, rounds
        for handle in handles:
            handle.remove()
            handle.remove()


def test_hooks_may_change_gradients_and_dictionaries():
    x = make_parameters(arrays(0, [(2, 2)]))
    optimizer = Adafactor(x)
    before = x[0].asnumpy().copy()
    with optimizer.register_step_pre_hook(lambda _, args, kwargs: (((args[0][0] * 0,),), kwargs)):
        optimizer((Tensor(np.ones((2, 2))),))
    assert (x[0].asnumpy() == before).all()
    with optimizer.register_state_dict_post_hook(lambda _, state: {"wrapped": state}):
        wrapped = optimizer.state_dict()
    with optimizer.register_load_state_dict_pre_hook(lambda _, state: state["wrapped"]):
        optimizer.load_state_dict(wrapped)
    with pytest.raises(TypeError, match="hook must be a function, but got 3"):
        optimizer.register_step_post_hook(3)


def test_what_is_stacked():
    parameters = make_parameters([np.zeros(s, np.float32) for s in [(2, 3), (200, 100), (2, 3), (200, 100), (4,)]])
    wanted = {None: [(0, 2), (1,), (3,), (4,)], True: [(0, 2), (1, 3), (4,)], False: [(0,), (1,), (2,), (3,), (4,)]}
    for foreach, members in wanted.items():
        assert [bucket.members for bucket in make_buckets(0, list(range(5)), parameters, foreach)] == members
    assert Adafactor(parameters[1:2]).memory() == 4 * (200 + 100 + 1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -1.0}, ValueError, "learning rate"),
        ({"beta2_decay": 0.1}, ValueError, "beta2_decay must be finite and at most 0, but got 0.1"),
        ({"eps": 1e-3}, TypeError, r"eps must be a pair \(eps1, eps2\), eps1 a number or None, but got 0.001"),
        ({"eps": (-1.0, 0.1)}, ValueError, r"eps\[0\] must be finite and at least 0, but got -1.0"),
        ({"d": 0.5}, ValueError, "d must be finite and at least 1, but got 0.5"),
        ({"weight_decay": -0.1}, ValueError, "weight_decay must be finite and at least 0, but got -0.1"),
        ({"maximize": 1}, TypeError, "maximize must be True or False, but got 1"),
        ({"foreach": "yes"}, TypeError, "foreach must be True or False, but got 'yes'"),
    ],
)
def test_errors_of_arguments(options, error, message):
    with pytest.raises(error, match=message):
        Adafactor(make_parameters([np.ones(2)]), **options)


def test_errors_of_groups_state_and_updates():
    x = np.ones((2, 3))
    p = make_parameters([x, x])
    with pytest.raises(KeyError, match="a group has the keys params, lr, .*, but got 'momentum'"):
        Adafactor([{"params": p, "momentum": 0.9}])
    optimizer = Adafactor(p)
    with pytest.raises(KeyError, match="but got 'epsilon'"):
        optimizer.param_groups[0]["epsilon"] = 1.0
    with pytest.raises(ValueError, match="foreach decides how the state is stacked and stays None, but got False"):
        optimizer.param_groups[0]["foreach"] = False
    with pytest.raises(ValueError, match="lr follows a schedule or a function and cannot be set"):
        Adafactor(p, [0.1, 0.2]).param_groups[0]["lr"] = 0.1
    with pytest.raises(ValueError, match=r"groups of \[1\] parameters, but the optimizer has groups of \[2\]"):
        optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
    bad_rate = {"params": [0, 1], "weight_decay": 0.5, "lr": -1.0}
    with pytest.raises(ValueError, match="lr must be finite and at least 0, but got -1.0"):
        optimizer.load_state_dict({"state": {}, "param_groups": [bad_rate]})
    assert optimizer.param_groups[0]["weight_decay"] == 0.0, "nothing of it is loaded"
    with pytest.raises(ValueError, match=r"state of parameter 0 \(w0\) must have step, row_var, col_var, but has step"):
        optimizer.load_state_dict({"state": {0: {"step": 1.0}}, "param_groups": [{"params": [0, 1]}]})
    with pytest.raises(ValueError, match="must be a dictionary with row and col, .* but got .'variance'"):
        adafactor_update(x, {"variance": x}, x, 1)
    with pytest.raises(ValueError, match="step must be at least 1, but got 0"):
        adafactor_update(x, adafactor_init(x), x, 0)
