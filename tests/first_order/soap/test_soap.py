"""SOAP against its algorithm in float64 NumPy, and by theorems."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from first_order import SOAP, adam_update, soap_init, soap_update
from first_order.soap import optimizer as module
from first_order.soap.eigenbases import axes_of, merged_shape
from tests.first_order.arrays import arrays, assert_close, make_parameters, tensors
from tests.first_order.soap.reference import Reference

SHAPES = [(4, 4), (5, 3), (3, 6), (7,), (), (4, 3, 3, 2), (3, 1)]
OPTIONS = [
    {},
    {"precondition_frequency": 1, "normalize_grads": True, "shampoo_beta": 0.8, "weight_decay": 0.0},
    {"precondition_frequency": 4, "max_precond_dim": 4, "correct_bias": False, "epsilon": 1e-3},
    {"precondition_frequency": 3, "merge_dims": True, "max_precond_dim": 12, "precondition_1d": True, "beta1": 0.8},
]
OF_SHAPES = ("max_precond_dim", "merge_dims", "precondition_1d")


def split(options):
    """(settings of soap_init, settings of a step)."""
    given = {"max_precond_dim": 10000, "merge_dims": False, "precondition_1d": False} | options
    return {name: given[name] for name in OF_SHAPES}, {k: v for k, v in options.items() if k not in OF_SHAPES}


def reference(shape, options):
    """The reference of a weight of this shape."""
    own, _ = split(options)
    merged = merged_shape(shape, own["max_precond_dim"], own["merge_dims"])
    return Reference(merged, axes_of(merged, own["max_precond_dim"], own["precondition_1d"], len(shape)))


def gradients(seed, shapes=SHAPES, dtype=np.float64):
    """Of unequal size along the first axis, so that eigenvalues differ."""
    return [
        (g * (1 + np.arange(len(g))).reshape(-1, *[1] * (g.ndim - 1)) if g.ndim else g).astype(dtype)
        for g in arrays(seed, shapes)
    ]


@pytest.mark.parametrize(("options", "mode"), list(zip(OPTIONS, 2 * [ms.GRAPH_MODE, ms.PYNATIVE_MODE], strict=True)))
def test_the_optimizer_is_the_algorithm_over_25_steps(options, mode):
    """From a state in which all matrices have full rank: eigenvectors of equal eigenvalues are arbitrary."""
    ms.set_context(mode=mode)
    values = arrays(0, SHAPES)
    optimizer = SOAP(make_parameters(values), 0.02, **options)
    theirs = [reference(shape, options).randomize(k) for k, shape in enumerate(SHAPES)]
    state = {f"w{k}/{name}": v for k, shape in enumerate(SHAPES) for name, v in theirs[k].state(shape).items()}
    optimizer.load_state_dict(state | {"global_step": 5})
    for t in range(5, 30):
        given = gradients(t)
        optimizer(tensors(given))
        own = split(options)[1]
        values = [each.step(x, g, t, 0.02, **own) for each, x, g in zip(theirs, values, given, strict=True)]
    assert int(optimizer.global_step.asnumpy()[0]) == 30
    for mine, other in zip(optimizer.parameters, values, strict=True):
        np.testing.assert_allclose(mine.asnumpy(), other, rtol=1e-9, atol=1e-9)
    for k, shape in enumerate(SHAPES):
        for name, value in theirs[k].state(shape).items():
            found = optimizer.state_dict()[f"w{k}/{name}"]
            if name.startswith("GG") or name == "exp_avg_sq":
                np.testing.assert_allclose(found, value, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(4, 4), (3, 2, 4), (6, 6)])
def test_it_starts_as_the_algorithm_says(dtype, shape):
    """The first call moves nothing and finds the eigenbases; here the first gradient has full rank."""
    (value,) = arrays(0, [shape], dtype)
    optimizer, theirs, x = SOAP(make_parameters([value]), 0.02), reference(shape, {}), value.astype(np.float64)
    for t in range(22):
        (g,) = gradients(t, [shape], dtype)
        optimizer(tensors([g]))
        x = theirs.step(x, g.astype(np.float64), t, 0.02)
        if t == 0:
            np.testing.assert_array_equal(optimizer.parameters[0].asnumpy(), value)
            for k, basis in theirs.bases.items():
                found = optimizer.moves[0].bases[k].asnumpy()
                np.testing.assert_allclose(np.abs(found), np.abs(basis), atol=1e-9 if dtype == np.float64 else 1e-3)
    assert_close(optimizer.parameters[0], x.astype(dtype), dtype, factor=1e2)


@pytest.mark.parametrize(
    ("dtype", "options"), [(np.float64, OPTIONS[1]), (np.float16, OPTIONS[2]), (np.float32, OPTIONS[3])]
)
def test_the_function_is_the_optimizer(dtype, options):
    own, _ = split(options)
    values = arrays(0, SHAPES, dtype)
    optimizer = SOAP(make_parameters(values), 0.02, **options)
    states = [soap_init(value, **own) for value in values]
    for t in range(5):
        given = gradients(t, dtype=dtype)
        optimizer(tensors(given))
        moved = [
            soap_update(x, state, g, t, 0.02, **options) for x, state, g in zip(values, states, given, strict=True)
        ]
        values, states = [x.asnumpy() for x, _ in moved], [state for _, state in moved]
    for mine, other in zip(optimizer.parameters, values, strict=True):
        assert_close(mine, other, dtype, factor=10.0)
    found = optimizer.state_dict()
    names = {f"w{k}/{name}" for k, state in enumerate(states) for name in state} | {"global_step"}
    assert found.keys() == names
    kind = np.float64 if dtype == np.float64 else np.float32
    assert {value.dtype for name, value in found.items() if name != "global_step"} == {np.dtype(kind)}


def test_the_function_works_inside_a_graph():
    (x,), own = arrays(0, [(4, 3)]), {"max_precond_dim": 3}
    names = tuple(soap_init(x, **own))

    @ms.jit
    def compiled(step, x, g, *state):
        given = {}
        for k in range(len(names)):
            given[names[k]] = state[k]
        moved, new = soap_update(x, given, g, step, 0.1, precondition_frequency=2, max_precond_dim=3)
        found = (moved,)
        for name in names:
            found += (new[name],)
        return found

    state, theirs, mine = soap_init(x, **own), x, x
    for t in range(4):
        (g,) = gradients(t, [(4, 3)])
        theirs, new = soap_update(theirs, state, g, t, 0.1, precondition_frequency=2, **own)
        found = compiled(Tensor(t), *tensors([mine, g]), *state.values())
        state, mine = new, found[0].asnumpy()
        for one, other in zip(found, (theirs, *new.values()), strict=True):
            np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), atol=1e-12)
        theirs = theirs.asnumpy()


# -- theorems ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["no axis is short enough", "the bases are identities"])
def test_without_rotations_it_is_adam(how):
    """But for the decay, which is decoupled, and for the first call."""
    (x,) = arrays(0, [(4, 3)])
    rotates = how == "the bases are identities"
    options = {"precondition_frequency": 100} if rotates else {"max_precond_dim": 1}
    state = soap_init(x, max_precond_dim=options.get("max_precond_dim", 10000))
    assert len(state) == (6 if rotates else 2)
    adam, m, v = x, 0 * x, 0 * x
    for t in range(1, 21):
        (g,) = gradients(t, [(4, 3)])
        x, state = soap_update(x, state, g, t, 0.1, 0.9, 0.99, epsilon=1e-3, weight_decay=0.0, **options)
        adam, m, v = adam_update(adam, m, v, g, t, 0.1, 0.9, 0.99, epsilon=1e-3)
    np.testing.assert_allclose(x.asnumpy(), adam.asnumpy(), rtol=1e-12)


def test_a_rotation_of_the_problem_rotates_the_steps():
    """Adam's steps do not: they depend on the coordinates."""
    left, right = (np.linalg.qr(m)[0] for m in arrays(9, [(4, 4), (4, 4)]))
    moved = {}
    for name, (p, q) in {"plain": (np.eye(4), np.eye(4)), "turned": (left, right)}.items():
        (x,) = arrays(0, [(4, 4)])
        optimizer = SOAP(make_parameters([p @ x @ q]), 0.05, precondition_frequency=3)
        adam = SOAP(make_parameters([p @ x @ q]), 0.05, max_precond_dim=1)
        for t in range(20):
            (g,) = gradients(t, [(4, 4)])
            for each in (optimizer, adam):
                each(tensors([p @ g @ q]))
        moved[name] = [each.parameters[0].asnumpy() for each in (optimizer, adam)]
    back = [left.T @ x @ right.T for x in moved["turned"]]
    np.testing.assert_allclose(back[0], moved["plain"][0], atol=1e-9)
    assert np.abs(back[1] - moved["plain"][1]).max() > 1e-2


def test_one_side_rotates_that_side_only():
    """For gradients whose rows are eigenvectors times numbers, the step is the sign of the numbers."""
    (x,) = arrays(0, [(6, 3)])
    q = np.linalg.qr(arrays(1, [(3, 3)])[0])[0]
    sizes = np.array([9.0, 4.0, 1.0])
    g = np.vstack([np.diag(sizes), -0.5 * np.diag(sizes)]) @ q.T  # each row has one eigenvector
    state = soap_init(x, max_precond_dim=3)
    assert set(state) == {"exp_avg", "exp_avg_sq", "GG1", "Q1"}
    moved, state = soap_update(x, state, g, 0, max_precond_dim=3)
    moved, _ = soap_update(x, state, g, 1, 0.1, weight_decay=0.0, max_precond_dim=3)
    np.testing.assert_allclose((x - moved.asnumpy()) / 0.1, np.vstack([q.T, -q.T]), atol=1e-6)


def test_a_normalized_step_has_the_learning_rate_for_its_size():
    values = arrays(0, SHAPES)
    optimizer = SOAP(make_parameters(values), 0.1, weight_decay=0.0, normalize_grads=True, correct_bias=False)
    for t in range(3):
        before = [p.asnumpy().copy() for p in optimizer.parameters]
        optimizer(tensors(gradients(t)))
        for p, old in zip(optimizer.parameters, before, strict=True):
            size = np.sqrt(((p.asnumpy() - old) ** 2).mean())
            assert size == pytest.approx(0.1 if t else 0.0, rel=1e-9)


# -- state, types, errors ----------------------------------------------------------------------------------------------


def test_a_state_goes_on_elsewhere_bit_for_bit():
    shapes = SHAPES[:4]
    values = arrays(0, shapes, np.float32)
    first, second = (SOAP(make_parameters(values), 0.02, precondition_frequency=2) for _ in range(2))
    for t in range(4):
        first(tensors(gradients(t, shapes, np.float32)))
    second(tensors(gradients(9, shapes, np.float32)))  # so that it is compiled already
    for p, value in zip(second.parameters, first.parameters, strict=True):
        p.set_data(Tensor(value.asnumpy().copy()))
    second.load_state_dict(first.state_dict())
    for t in range(4, 8):
        for each in (first, second):
            each(tensors(gradients(t, shapes, np.float32)))
    for one, other in zip(first.parameters, second.parameters, strict=True):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
    assert first.memory() == sum(v.nbytes for n, v in first.state_dict().items() if n != "global_step")


@pytest.mark.parametrize("shape", [(3, 3), (3,)])
def test_gradients_that_float16_does_not_hold_need_the_loss_scale(shape):
    (g,) = arrays(0, [shape], scale=2e-8)
    results = []
    for dtype in (ms.float16, ms.float32):
        weight = Parameter(Tensor(np.ones(shape), dtype), name="w")
        optimizer = SOAP([weight], 0.1, loss_scale=2.0**16, epsilon=1e-12)
        for _ in range(3):
            optimizer((Tensor(g * 2**16, dtype),))
        results.append(weight.asnumpy().astype(np.float64))
    assert np.abs(results[1] - 1).max() > 0.05
    np.testing.assert_allclose(results[0], results[1], atol=5e-3)


def test_a_gradient_that_is_no_number_shows():
    weight = make_parameters([np.ones((3, 3), np.float32)])
    optimizer = SOAP(weight, 0.1)
    g = np.ones((3, 3), np.float32)
    optimizer(tensors([g]))
    g[0, 1] = np.nan
    optimizer(tensors([g]))
    assert np.isnan(weight[0].asnumpy()).any()


X = np.ones((2, 3))
BAD = [
    ({"grad": np.ones((3, 2))}, ValueError, r"grad must have the shape of param, \(2, 3\), but got \(3, 2\)"),
    ({"state": {}}, ValueError, r"must be a dictionary with exp_avg, exp_avg_sq, GG0, Q0, GG1, Q1, as from soap_init"),
    ({"max_precond_dim": 2}, ValueError, r"with exp_avg, exp_avg_sq, GG0, Q0, as from .* but got \['GG0', 'GG1'"),
    ({"state": soap_init(X) | {"Q0": np.eye(3)}}, ValueError, r"state\['Q0'\] must have shape \(2, 2\), but got"),
    ({"state": soap_init(np.ones((2, 3), np.float32))}, TypeError, r"state\['exp_avg'\] must be of type Float64"),
    ({"step": -1}, ValueError, "step must be finite and at least 0, but got -1"),
    ({"step": 0.5}, ValueError, "step must be a whole number from 0, but got 0.5"),
    ({"beta1": 1.0}, ValueError, "beta1 must be finite and at least 0 and less than 1, but got 1"),
    ({"shampoo_beta": -1.0}, ValueError, "shampoo_beta must be finite and at least 0 .*, but got -1"),
    ({"epsilon": -1.0}, ValueError, "epsilon must be finite and at least 0, but got -1"),
    ({"precondition_frequency": 0}, ValueError, "precondition_frequency must be at least 1, but got 0"),
    ({"max_precond_dim": 2.0}, TypeError, "max_precond_dim must be an int, but got 2.0"),
    ({"merge_dims": 1}, TypeError, "merge_dims must be True or False, but got 1"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_errors_of_the_update(changes, error, message):
    with pytest.raises(error, match=message):
        soap_update(**({"param": X, "state": soap_init(X), "grad": X, "step": 1} | changes))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"beta2": 1.0}, ValueError, "beta2 must be finite and at least 0 and less than 1, but got 1"),
        ({"shampoo_beta": 2}, ValueError, "shampoo_beta must be finite and at least 0 and less than 1, but got 2"),
        ({"precondition_frequency": 1.5}, TypeError, "precondition_frequency must be an int, but got 1.5"),
        ({"max_precond_dim": 0}, ValueError, "max_precond_dim must be at least 1, but got 0"),
        ({"normalize_grads": None}, TypeError, "normalize_grads must be True or False, but got None"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay"),
    ],
)
def test_errors_of_the_optimizer(options, error, message):
    with pytest.raises(error, match=message):
        SOAP(make_parameters([X]), 0.1, **options)


def test_further_errors(monkeypatch):
    optimizer = SOAP(make_parameters([X]))
    with pytest.raises(TypeError, match="SOAP takes no sparse gradients"):
        optimizer(((Tensor(X), Tensor([0, 1])),))
    with pytest.raises(KeyError, match="missing .*w0/GG1"):
        optimizer.load_state_dict({"w0/exp_avg": X})
    monkeypatch.setattr(module.ms, "get_context", lambda name: "Ascend")
    with pytest.raises(RuntimeError, match="SOAP needs eigh, .* for CPU and GPU only, but the device is an Ascend"):
        SOAP(make_parameters([X]))
