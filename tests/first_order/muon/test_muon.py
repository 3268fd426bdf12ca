"""Muon against PyTorch's Muon and AdamW, and against the formulas in float64 NumPy."""

import mindspore as ms
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, nn

from first_order import Muon, muon_update
from first_order.muon import optimizer as module
from tests.first_order.arrays import TOLERANCE, arrays, assert_close, make_parameters, tensors
from tests.first_order.muon import reference
from tests.first_order.muon.reference import Torch

#: Tall, wide, square and equal matrices, and what is none.
SHAPES = [(6, 4), (4, 9), (6, 4), (5,), (3, 3), (), (6, 4)]
OPTIONS = {"adamw_learning_rate": 0.003, "weight_decay": 0.3, "adamw_weight_decay": 0.2, "adamw_beta2": 0.99}


def theirs_with(values, **options):
    """PyTorch's with OPTIONS."""
    return Torch(values, 0.02, 0.003, 0.3, 0.2, (0.9, 0.99), 1e-10, **options)


@pytest.fixture
def no_bfloat16(monkeypatch):
    """PyTorch's Muon goes on in the type of the weights, where it would round to bfloat16."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())


@pytest.mark.parametrize(
    ("dtype", "mode", "options"),
    [
        (np.float64, ms.GRAPH_MODE, {}),
        (np.float64, ms.PYNATIVE_MODE, {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.8}),
        (np.float32, ms.PYNATIVE_MODE, {"nesterov": False, "ns_steps": 3, "ns_coefficients": (1.5, -0.5, 0.0)}),
        (np.float32, ms.GRAPH_MODE, {"eps": 1.0}),
    ],
)
def test_the_optimizer_is_pytorchs_over_50_steps(no_bfloat16, dtype, mode, options):
    ms.set_context(mode=mode)
    values = arrays(0, SHAPES, dtype)
    theirs, ours = theirs_with(values, **options), make_parameters(values)
    optimizer = Muon(ours, 0.02, **OPTIONS, **options)
    for step in range(50):
        gradients = arrays(step + 1, SHAPES, dtype, scale=10.0 ** (step % 5 - 2))
        theirs.step(gradients)
        optimizer(tensors(gradients))
    for mine, other in zip(ours, theirs.values, strict=True):
        assert_close(mine, other, dtype)


def test_with_bfloat16_it_is_pytorchs_as_it_is():
    """Where a sum falls between two numbers of bfloat16, the order of its terms decides.

    A Muon that does not round to bfloat16 ends farther away.
    """
    values = arrays(0, SHAPES, np.float32)
    theirs, rounded, exact = theirs_with(values), make_parameters(values), make_parameters(values)
    optimizers = Muon(rounded, 0.02, **OPTIONS, ns_dtype=ms.bfloat16), Muon(exact, 0.02, **OPTIONS)
    for step in range(20):
        gradients = arrays(step + 1, SHAPES, np.float32)
        theirs.step(gradients)
        for optimizer in optimizers:
            optimizer(tensors(gradients))
    for mine, other in zip(rounded, theirs.values, strict=True):
        assert_close(mine, other, np.float32, factor=100.0)
    near, far = (
        sum(np.square(mine.asnumpy() - other).sum() for mine, other in zip(ours, theirs.values, strict=True))
        for ours in (rounded, exact)
    )
    assert near < far / 4


hypers = st.fixed_dictionaries({
    "learning_rate": st.floats(0, 1), "momentum": st.floats(0, 0.999), "weight_decay": st.floats(0, 0.5),
    "nesterov": st.booleans(), "ns_steps": st.integers(0, 6),
})  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(options=hypers, shape=st.sampled_from([(3, 5), (5, 3), (4, 2, 3, 3)]), seed=st.integers(0, 99),
       dtype=st.sampled_from([np.float16, np.float32, np.float64]), adjusted=st.booleans())  # fmt: skip
def test_the_update_is_the_formula(options, shape, seed, dtype, adjusted):
    x, g = arrays(seed, [shape, shape], dtype)
    (buffer,) = arrays(seed + 1, [shape], np.float64 if dtype == np.float64 else np.float32)
    found = muon_update(x, buffer, g, adjust_lr_fn="match_rms_adamw" if adjusted else None, **options)
    assert found[0].asnumpy().dtype == dtype and found[1].asnumpy().dtype == buffer.dtype
    rows, columns = shape[0], int(np.prod(shape[1:]))
    ratio = 0.2 * np.sqrt(max(rows, columns)) if adjusted else None
    wanted = reference.muon(*(a.astype(np.float64) for a in (x, buffer, g)), **options, ratio=ratio)
    for mine, other, tolerance in zip(found, wanted, (TOLERANCE[dtype], TOLERANCE[buffer.dtype.type]), strict=True):
        size = max(np.abs(other).max(), 1.0)
        np.testing.assert_allclose(mine.asnumpy(), other, rtol=0, atol=20 * tolerance * size)


def test_a_step_does_not_depend_on_the_scale_of_the_gradients():
    moved = []
    for scale in (1e-3, 1.0, 1e4):
        values = arrays(0, SHAPES)
        ours = make_parameters(values)
        optimizer = Muon(ours, 0.02, adamw_epsilon=0.0)
        for step in range(3):
            optimizer(tensors(arrays(step + 1, SHAPES, scale=scale)))
        moved.append([p.asnumpy() for p in ours])
    for values in moved[1:]:
        for one, other in zip(values, moved[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize(("limit", "stacks"), [(1, [1] * 7), (50, [2, 2, 1, 1, 1]), (None, [4, 1, 1, 1])])
def test_equal_matrices_move_together_as_they_would_alone(limit, stacks, monkeypatch):
    monkeypatch.setattr(module, "STACK_LIMIT", limit or module.STACK_LIMIT)
    shapes = [(6, 4)] * 4 + [(4, 6), (3, 8), (6, 1, 2, 2)]  # the kernel's matrix is as the first ones
    values = arrays(0, shapes)
    together = Muon(make_parameters(values), 0.1)
    assert [len(move.weights) for move in together.moves] == stacks
    for step in range(3):
        together(tensors(arrays(step + 1, shapes)))
    for i, x in enumerate(values):
        buffer = 0 * x
        for step in range(3):
            x, buffer = (t.asnumpy() for t in muon_update(x, buffer, arrays(step + 1, shapes)[i], 0.1))
        np.testing.assert_allclose(together.parameters[i].asnumpy(), x, rtol=1e-12)


def test_a_kernel_moves_as_its_matrix_or_by_adamw():
    (value,), (g,) = arrays(0, [(4, 2, 3, 3)]), arrays(1, [(4, 2, 3, 3)])
    kernel, matrix = make_parameters([value]), make_parameters([value.reshape(4, 18)])
    Muon(kernel, 0.1)(tensors([g]))
    Muon(matrix, 0.1)(tensors([g.reshape(4, 18)]))
    np.testing.assert_array_equal(kernel[0].asnumpy().reshape(4, 18), matrix[0].asnumpy())
    others = make_parameters([value])
    optimizer = Muon(others, 0.1, flatten=False)
    optimizer(tensors([g]))
    assert optimizer.by_muon == []
    wanted, _, _ = reference.adamw(value, 0 * value, 0 * value, g, 1, 0.1)
    np.testing.assert_allclose(others[0].asnumpy(), wanted, rtol=1e-12)


# -- which weights, which rates ----------------------------------------------------------------------------------------


def named(**shapes):
    return [Parameter(Tensor(np.ones(shape)), name=name.replace("__", ".")) for name, shape in shapes.items()]


def test_the_rule_for_weights_of_groups_without_use_muon():
    weights = named(fc__weight=(2, 3), fc__bias=(2,), conv__weight=(2, 1, 3, 3), table__embedding_table=(5, 2))
    assert Muon(weights).by_muon == ["fc.weight", "conv.weight"]
    assert Muon(weights, flatten=False).by_muon == ["fc.weight"]
    grouped = [{"params": weights[:2], "use_muon": False}, {"params": weights[2:3]},
               {"params": weights[3:], "use_muon": True}]  # fmt: skip
    assert Muon(grouped).by_muon == ["conv.weight", "table.embedding_table"]


GRADIENT = 0.5


def moves_of(optimizer):
    """How far each weight moves in the first step, by name; all weights are ones, and all gradients equal."""
    before = [p.asnumpy().copy() for p in optimizer.parameters]
    optimizer(tuple(Tensor(np.full(p.shape, GRADIENT)) for p in optimizer.parameters))
    return {p.name: np.abs(p.asnumpy() - old).max() for p, old in zip(optimizer.parameters, before, strict=True)}


@pytest.mark.parametrize("grouped", [False, True])
def test_adamws_own_rate_and_decay_leave_the_order_as_it_was(grouped):
    """The first step of AdamW is its rate; what is named beta does not decay where there are no groups."""
    weights = named(bias=(2,), weight=(2, 3), norm__beta=(2,), head=(2, 3))
    given = weights
    if grouped:
        given = [{"params": weights[:3]}, {"params": weights[3:], "use_muon": False, "lr": 0.5}]
    for decay in (0.0, 1.0):
        optimizer = Muon(given, 0.1, weight_decay=0.0, adamw_learning_rate=0.01, adamw_weight_decay=decay)
        assert [p.name for p in optimizer.parameters] == [p.name for p in weights]
        for p in weights:
            p.set_data(Tensor(np.ones(p.shape)))
        moved = moves_of(optimizer)
        assert moved["bias"] == pytest.approx(0.01 * (1 + decay))
        assert moved["norm.beta"] == pytest.approx(0.01 * (1 + decay * grouped))
        if grouped:
            assert moved["head"] == pytest.approx(0.5 * (1 + decay))
        step = reference.polynomial(1.0, 5) / np.sqrt(6)  # the one singular value of a matrix of equal entries
        assert moved["weight"] == pytest.approx(0.1 * step)


def test_order_params_and_lists_of_rates():
    weights = named(bias=(2,), weight=(2, 3))
    given = [{"params": weights[1:]}, {"params": weights[:1]}, {"order_params": weights}]
    optimizer = Muon(given, [0.1, 0.2], weight_decay=0.0, adamw_learning_rate=[0.01, 0.02])
    assert [p.name for p in optimizer.parameters] == ["bias", "weight"]
    first, second = moves_of(optimizer), moves_of(optimizer)
    for name in ("bias", "weight"):
        assert second[name] == pytest.approx(2 * first[name], rel=1e-6)
    assert first["bias"] == pytest.approx(0.01, rel=1e-6)


def test_decay_may_follow_a_schedule_and_ignores_the_loss_scale():
    """nn.Optimizer multiplies decays by the loss scale, as it adds them to scaled gradients."""

    class Falling(nn.Cell):
        def construct(self, step):
            return 1.0 / (1.0 + step.astype(ms.float32))

    for grouped in (False, True):
        for decay in (0.5, Falling()):
            (weight,) = named(weight=(2, 3))
            given = [{"params": [weight], "weight_decay": decay}] if grouped else [weight]
            optimizer = Muon(given, 0.1, weight_decay=0.0 if grouped else decay, loss_scale=8.0)
            zero = (Tensor(np.zeros((2, 3))),)
            for k in range(3):
                before = weight.asnumpy().copy()
                optimizer(zero)
                wanted = 0.5 if decay == 0.5 else 1 / (1 + k)
                np.testing.assert_allclose(weight.asnumpy(), before * (1 - 0.1 * wanted), rtol=1e-6)


# -- types, state, errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3), (3,)])
def test_float16_keeps_its_state_in_float32_and_needs_the_loss_scale(shape):
    """Gradients of 2e-8 are zero in float16. AdamW's epsilon is 1e-10: it moves by its rate; Muon by the direction."""
    results = []
    for dtype in (ms.float16, ms.float32):
        weight = Parameter(Tensor(np.ones(shape), dtype), name="w")
        optimizer = Muon([weight], 0.1, loss_scale=2.0**16, eps=1e-12)
        for _ in range(2):
            optimizer((Tensor(np.full(shape, 2e-8 * 2**16), dtype),))
        assert all(p.dtype == ms.float32 for p in (*optimizer.momentum_buffers, *optimizer.m, *optimizer.v))
        results.append(weight.asnumpy().astype(np.float64))
    assert np.abs(results[1] - 1).min() > 0.05
    np.testing.assert_allclose(results[0], results[1], rtol=2e-3)


def test_state_moves_from_pytorch_and_back(no_bfloat16):
    values, steps = arrays(0, SHAPES), [arrays(k + 1, SHAPES) for k in range(6)]
    theirs, ours = theirs_with(values), Muon(make_parameters(values), 0.02, **OPTIONS)
    for gradients in steps[:3]:
        theirs.step(gradients)
        ours(tensors(gradients))
    moved = {"global_step": 3}
    for optimizer in theirs.optimizers:
        for parameter, state in optimizer.state.items():
            index = next(i for i, p in enumerate(theirs.parameters) if p is parameter)
            moved |= {f"w{index}/{name}": v.numpy() for name, v in state.items() if name != "step"}
    assert moved.keys() == ours.state_dict().keys()
    for name, value in ours.state_dict().items():
        np.testing.assert_allclose(value, moved[name], rtol=1e-12)
    resumed = Muon(make_parameters(theirs.values), 0.02, **OPTIONS)
    resumed(tensors(steps[0]))  # so that it is compiled already
    for parameter, value in zip(resumed.parameters, theirs.values, strict=True):
        parameter.set_data(Tensor(np.array(value)))
    resumed.load_state_dict(moved)
    for gradients in steps[3:]:
        theirs.step(gradients)
        resumed(tensors(gradients))
    for mine, other in zip(resumed.parameters, theirs.values, strict=True):
        assert_close(mine, other, np.float64)


X = np.ones((2, 3))
BAD = [
    ({"param": np.ones(3), "momentum_buffer": np.ones(3), "grad": np.ones(3)}, ValueError,
     r"param must have at least two axes, but has shape \(3,\): Muon moves matrices only"),
    ({"grad": np.ones((3, 2))}, ValueError, r"grad must have the shape of param, \(2, 3\), but got \(3, 2\)"),
    ({"momentum_buffer": X.T}, ValueError, r"momentum_buffer must have the shape of param, \(2, 3\), but got \(3, 2\)"),
    ({"momentum_buffer": X.astype(np.float32)}, TypeError, "momentum_buffer must be of type Float64, but got Float32"),
    ({"momentum": 1.0}, ValueError, "momentum must be finite and at least 0 and less than 1, but got 1"),
    ({"learning_rate": -1}, ValueError, "learning_rate must be finite and at least 0, but got -1"),
    ({"adjust_lr_fn": "rms"}, ValueError, "adjust_lr_fn must be one of original, match_rms_adamw, but got 'rms'"),
    ({"nesterov": 1}, TypeError, "nesterov must be True or False, but got 1"),
    ({"ns_steps": -1}, ValueError, "ns_steps must be at least 0, but got -1"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_errors_of_the_update(changes, error, message):
    with pytest.raises(error, match=message):
        muon_update(**({"param": X, "momentum_buffer": X, "grad": X} | changes))


def groups(**options):
    weight, bias, kernel = named(weight=(2, 3), bias=(2,), kernel=(2, 1, 3, 3))
    return [{"params": [weight, kernel]}, {"params": [bias]} | options]


BAD_GROUPS = [
    (groups(use_muon=True), {}, ValueError, r"group 1 has use_muon=True, but bias has shape \(2,\).*use_muon=False"),
    (groups(use_muon=1), {}, TypeError, "use_muon of group 1 must be True or False, but got 1"),
    ([groups()[0] | {"use_muon": True}], {"flatten": False}, ValueError, "kernel has shape .*: leave flatten=True"),
    (groups(momentum=0.5), {}, KeyError, "key in group params must be one of .*momentum"),
    (groups(), {"momentum": 1.5}, ValueError, "momentum must be finite and at least 0 and less than 1, but got 1.5"),
    (groups(), {"adamw_beta2": 1.0}, ValueError, "adamw_beta2 must be finite .* less than 1, but got 1"),
    (groups(), {"adamw_epsilon": -1.0}, ValueError, "adamw_epsilon must be finite and at least 0, but got -1"),
    (groups(), {"adamw_weight_decay": -1.0}, ValueError, "adamw_weight_decay must be finite and at least 0"),
    (groups(), {"adamw_learning_rate": lambda: 0.1}, TypeError, "adamw_learning_rate must be a number, list"),
    (groups(), {"learning_rate": lambda: 0.1, "adamw_learning_rate": 0.1}, TypeError, "learning_rate beside adamw_"),
    (groups(), {"adamw_learning_rate": "fast"}, TypeError, "adamw_learning_rate must be a number, .*, but got 'fast'"),
    (groups(), {"flatten": None}, TypeError, "flatten must be True or False, but got None"),
    (groups(), {"ns_dtype": "bfloat16"}, ValueError, "ns_dtype must be None .*, but got 'bfloat16'"),
]


@pytest.mark.parametrize(("params", "options", "error", "message"), BAD_GROUPS)
def test_errors_of_the_optimizer(params, options, error, message):
    with pytest.raises(error, match=message):
        Muon(params, **({"learning_rate": 0.1} | options))


def test_errors_of_gradients_and_state():
    optimizer = Muon(make_parameters([X]))
    with pytest.raises(TypeError, match="Muon takes no sparse gradients"):
        optimizer(((Tensor(X), Tensor([0, 1])),))
    with pytest.raises(KeyError, match="missing .*w0/momentum_buffer.* unknown .*w0/exp_avg"):
        optimizer.load_state_dict({"global_step": 1, "w0/exp_avg": X})
