"""Adam against TensorFlow itself and, for DirectML, which has no package for Linux, its formula in float64 NumPy."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, nn, ops

from first_order import Adam, adam_update, sparse_adam_update
from tests.first_order.arrays import SHAPES, TOLERANCE, arrays, assert_close, make_parameters, tensors

DTYPES = list(TOLERANCE)


def directml(x, m, v, g, t, lr, beta1, beta2, eps):
    """The operator's formula as documented, in float64."""
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    return x - lr * np.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (np.sqrt(v) + eps), m, v


hypers = st.tuples(
    st.floats(1e-5, 1.0), st.floats(0.0, 0.99), st.floats(0.0, 0.9999), st.floats(1e-10, 1e-2), st.integers(1, 10_000)
)


@settings(max_examples=25, deadline=None)
@given(hypers=hypers, shape=st.sampled_from(SHAPES), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_the_update_is_directmls_formula(hypers, shape, dtype, seed):
    *numbers, step = hypers
    if dtype != np.float64:  # the operator's constants are float32
        numbers = [float(np.float32(n)) for n in numbers]
    lr, beta1, beta2, eps = numbers
    x, m, v, g = arrays(seed, [shape] * 4, dtype)
    v = np.abs(v)
    wanted = directml(*(a.astype(np.float64) for a in (x, m, v, g)), step, lr, beta1, beta2, eps)
    for ours, theirs, old in zip(adam_update(x, m, v, g, step, lr, beta1, beta2, eps), wanted, (x, m, v), strict=True):
        assert ours.dtype == Tensor(old).dtype
        scale = max(np.abs(theirs).max(), np.abs(old).max(), 1e-3)
        np.testing.assert_allclose(ours.asnumpy(), theirs, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_update_is_tensorflows_kernel_over_50_steps(tensorflow, dtype, nesterov):
    """Function and optimizer; one flat tensor, as the kernel works entry by entry."""
    (x,) = arrays(0, [(40,)], dtype)
    hypers = {"beta1": dtype(0.8), "beta2": dtype(0.99), "epsilon": dtype(1e-6)}
    gradients = [arrays(step, [(40,)], dtype, scale=10.0 ** (step % 5 - 2))[0] for step in range(1, 51)]
    wanted = tensorflow("raw", x, gradients, hypers, dtype(0.05), nesterov)
    start, m, v = x, x * 0, x * 0
    numbers = [float(n) for n in hypers.values()]
    for step, g in enumerate(gradients, 1):
        x, m, v = (t.asnumpy() for t in adam_update(x, m, v, g, step, 0.05, *numbers, use_nesterov=nesterov))
    optimizer = run([start], [[g] for g in gradients], 0.05, *numbers, use_nesterov=nesterov)
    state = (optimizer.parameters[0], optimizer.m[0], optimizer.v[0])
    for ours, also, theirs in zip((x, m, v), state, wanted, strict=True):
        assert_close(ours, theirs, dtype)
        assert_close(also, theirs, dtype)


def run(values, steps, *arguments, **options):
    """Our optimizer over all steps."""
    optimizer = Adam(make_parameters(values), *arguments, **options)
    for gradients in steps:
        optimizer(tuple(tensors(g) if isinstance(g, tuple) else Tensor(g) for g in gradients))
    return optimizer


def assert_same(optimizer, theirs, dtype):
    for ours, name in ((optimizer.parameters, "x"), (optimizer.m, "m"), (optimizer.v, "v")):
        for mine, other in zip(ours, theirs[name], strict=True):
            assert_close(mine, other, dtype)
    for mine, other in zip((optimizer.beta1_power, optimizer.beta2_power), theirs["powers"], strict=True):
        assert_close(mine, other, dtype)


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_the_optimizer_is_tensorflows_over_50_steps(tensorflow, mode):
    """float32: AdamOptimizer rounds its hyper-parameters and powers to it whatever the weights are."""
    ms.set_context(mode=mode)
    values, steps = arrays(0, dtype=np.float32), [arrays(step, dtype=np.float32) for step in range(1, 51)]
    theirs = tensorflow("adam", values, steps, {"learning_rate": 0.03})
    assert_same(run(values, steps, learning_rate=0.03), theirs, np.float32)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hypers=hypers, seed=st.integers(0, 99), nesterov=st.booleans())
@example(hypers=(1.0, 0.5, 0.1, 2.0**-7, 1), seed=0, nesterov=False)
def test_the_optimizer_is_tensorflows_kernel_with_any_hyper_parameters(tensorflow, hypers, seed, nesterov):
    """But for beta2 below 0.1: the kernel's v + (g^2 - v) (1 - beta2) rounds to v / g^2 of its precision, 1 / beta2."""
    rate, beta1, beta2, epsilon, _ = hypers
    beta2 = max(beta2, 0.1)
    values, steps = arrays(seed, [(9,)]), [arrays(seed + step, [(9,)]) for step in range(1, 11)]
    options = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    wanted = tensorflow("raw", values[0], [g for (g,) in steps], options, rate, nesterov)
    optimizer = run(values, steps, rate, use_nesterov=nesterov, **options)
    for ours, theirs in zip((optimizer.parameters[0], optimizer.m[0], optimizer.v[0]), wanted, strict=True):
        assert_close(ours, theirs, np.float64)


def test_without_memory_the_state_is_the_last_gradient_and_its_square_exactly():
    """Where the kernel's formula rounds: by 5e-12 in ten steps, found by the test above."""
    (value,), gradients = arrays(0, [(9,)]), [arrays(step, [(9,)]) for step in range(1, 11)]
    optimizer = run([value], gradients, 1.0, beta1=0.0, beta2=0.0, epsilon=2.0**-7)
    (last,) = gradients[-1]
    np.testing.assert_array_equal(optimizer.m[0].asnumpy(), last)
    np.testing.assert_array_equal(optimizer.v[0].asnumpy(), last * last)


def test_float16_follows_tensorflow_to_its_precision(tensorflow):
    """TensorFlow rounds every operation, and its powers, to float16: betas that it can hold."""
    options = {"learning_rate": 2.0**-6, "beta1": 0.75, "beta2": 0.9375, "epsilon": 2.0**-6}
    values, steps = arrays(0, [(3, 4)], np.float16), [arrays(k, [(3, 4)], np.float16) for k in range(1, 51)]
    theirs = tensorflow("adam", values, steps, options)
    assert_close(run(values, steps, **options).parameters[0], theirs["x"][0], np.float16)


def test_sparse_gradients_are_tensorflows(tensorflow):
    """Repeated indices, rows that never occur again (and move on), beside a dense weight; also as a function."""
    rng = np.random.default_rng(0)
    values, steps = arrays(0, [(6, 3), (2,)], np.float32), []
    for step in range(1, 21):
        rows = rng.integers(0, 4, 5).astype(np.int32) if step > 1 else np.array([5, 5, 5, 1, 1], np.int32)
        pair = (rng.standard_normal((5, 3)).astype(np.float32), rows)
        steps.append([pair, rng.standard_normal(2).astype(np.float32)])
    theirs = tensorflow("adam", values, steps, {"learning_rate": 0.1})
    assert_same(run(values, steps, learning_rate=0.1), theirs, np.float32)
    x, m, v = values[0], values[0] * 0, values[0] * 0
    for count, (pair, _) in enumerate(steps, 1):
        x, m, v = (t.asnumpy() for t in sparse_adam_update(x, m, v, *pair, count, 0.1))
    assert_close(x, theirs["x"][0], np.float32)


def test_lazy_moves_only_the_rows_that_occur():
    x, zero = np.ones((4, 2), np.float32), np.zeros((4, 2), np.float32)
    rows, values = np.array([2, 0, 2], np.int32), np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    first = [t.asnumpy() for t in sparse_adam_update(x, zero, zero, values, rows, 1, 0.1, lazy=True)]
    parameter = make_parameters([x])
    optimizer = Adam(parameter, 0.1, lazy=True)
    optimizer((tensors((values, rows)),))
    np.testing.assert_allclose(parameter[0].asnumpy(), first[0], rtol=1e-6)
    one = np.array([1], np.int32)
    second = sparse_adam_update(*first, values[:1], one, 2, 0.1, lazy=True)
    dense = adam_update(first[0][1], first[1][1], first[2][1], values[0], 2, 0.1)
    for new, old, row in zip(second, first, dense, strict=True):
        assert (new.asnumpy()[[0, 2, 3]] == old[[0, 2, 3]]).all()
        np.testing.assert_allclose(new.asnumpy()[1], row.asnumpy(), rtol=1e-6)


def test_a_sparse_embedding_trains_inside_a_graph():
    """MindSpore's own sparse gradients (RowTensor, which only graphs have) equal the dense ones."""
    ms.set_context(mode=ms.GRAPH_MODE)
    table = arrays(0, [(6, 3)], np.float32)[0]

    class Lookup(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embedding = nn.EmbeddingLookup(6, 3, param_init=Tensor(table), sparse=True)

        def construct(self, rows, target):
            return ((self.embedding(rows) - target) ** 2).sum()

    rows, target = np.array([1, 4, 1], np.int32), arrays(1, [(3, 3)], np.float32)[0]
    net = Lookup()
    step = nn.TrainOneStepCell(net, Adam(net.trainable_params(), 0.1)).set_train()
    x, m, v = table, table * 0, table * 0
    for count in range(1, 4):
        gradient = np.zeros_like(table)
        np.add.at(gradient, rows, 2 * (x[rows] - target))
        x, m, v = (t.asnumpy() for t in adam_update(x, m, v, gradient, count, 0.1))
        step(Tensor(rows), Tensor(target))
    np.testing.assert_allclose(net.embedding.embedding_table.asnumpy(), x, rtol=1e-4, atol=1e-5)


def test_step_types_and_the_policy_for_step_0():
    x = np.array([1.0, -2.0], np.float32)
    wanted = adam_update(x, x * 0, x * 0, x, 1)[0].asnumpy()
    for step in (1.0, np.uint32(1), Tensor(1, ms.int64), Tensor([1.0], ms.float32), np.ones((1, 1, 1, 1), np.uint32)):
        assert (adam_update(x, x * 0, x * 0, x, step)[0].asnumpy() == wanted).all()
    for step in (0, Tensor(0, ms.uint32), Tensor(0.0, ms.float32)):
        with pytest.raises(ValueError, match="step must be at least 1, but got 0: the bias correction divides"):
            adam_update(x, x * 0, x * 0, x, step)

    @ms.jit
    def compiled(x, m, v, g, step):
        return adam_update(x, m, v, g, step)

    given = tensors((x, x * 0, x * 0, x))
    for step in (0, 1):
        np.testing.assert_allclose(compiled(*given, Tensor(step, ms.int32))[0].asnumpy(), wanted, rtol=1e-6)


def test_in_place_writes_into_the_parameters():
    x, m, v = (Parameter(Tensor(a), name=n) for a, n in zip(arrays(0, [(3,)] * 3, np.float32), "xmv", strict=True))
    v.set_data(ops.abs(v))
    new = [t.asnumpy().copy() for t in adam_update(x, m, v, m, 2)]
    adam_update(x, m, v, Tensor(m.asnumpy().copy()), 2, in_place=True)
    for parameter, value in zip((x, m, v), new, strict=True):
        assert (parameter.asnumpy() == value).all()


def test_hyper_parameters_may_be_functions(tensorflow):
    """Each asked once a step, as TensorFlow asks."""
    values, steps = arrays(0, [(3,)], np.float32), [arrays(k, [(3,)], np.float32) for k in range(4)]
    options = {
        "learning_rate": [0.1, 0.05, 0.2, 0.1], "beta1": [0.5, 0.6, 0.7, 0.8], "beta2": [0.9, 0.91, 0.92, 0.93],
        "epsilon": [1.0, 0.1, 0.01, 0.001],
    }  # fmt: skip
    at = 0
    functions = {name: lambda values=values: values[at] for name, values in options.items()}
    optimizer = Adam(make_parameters(values), **functions)
    for gradients in steps:
        optimizer(tensors(gradients))
        at = min(at + 1, 3)
    assert_same(optimizer, tensorflow("adam", values, steps, options), np.float32)


def test_state_moves_to_tensorflow_and_back(tensorflow):
    values, steps = arrays(0, dtype=np.float32), [arrays(k, dtype=np.float32) for k in range(1, 9)]
    optimizer = run(values, steps[:4], learning_rate=0.1)
    state, names = optimizer.state_dict(), [p.name for p in optimizer.parameters]
    moved = {
        "powers": [state["beta1_power"], state["beta2_power"]],
        "m": [state[f"{name}/Adam"] for name in names],
        "v": [state[f"{name}/Adam_1"] for name in names],
    }
    here = [p.asnumpy().copy() for p in optimizer.parameters]
    theirs = tensorflow("adam", here, steps[4:], {"learning_rate": 0.1}, moved)
    assert_same(run(values, steps, learning_rate=0.1), theirs, np.float32)
    # and back, into one that has stepped, and so was compiled, already
    resumed = run(theirs["x"], steps[:1], learning_rate=0.1)
    for parameter, value in zip(resumed.parameters, theirs["x"], strict=True):
        ops.assign(parameter, Tensor(value))
    slots = dict(zip(("beta1_power", "beta2_power"), theirs["powers"], strict=True))
    for i, name in enumerate(names):
        slots |= {f"{name}/Adam": theirs["m"][i], f"{name}/Adam_1": theirs["v"][i]}
    resumed.load_state_dict(slots)
    resumed(tensors(steps[0]))
    again = tensorflow("adam", theirs["x"], steps[:1], {"learning_rate": 0.1}, theirs)
    assert_same(resumed, again, np.float32)


BAD = [
    ({"param": [1.0]}, TypeError, r"param must be a Tensor or a NumPy array, but got \[1.0\]"),
    ({"param": np.ones(2, np.int32)}, TypeError, "param must be of type Float16, Float32, Float64, but got Int32"),
    ({"m": np.ones(3, np.float32)}, ValueError, r"m must have the shape of param, \(2,\), but got \(3,\)"),
    ({"grad": np.ones(2)}, TypeError, "grad must be of param's type, Float32, but got Float64"),
    ({"beta1": 1.1}, ValueError, "beta1 must be finite and at least 0 and less than 1, but got 1.1"),
    ({"epsilon": Tensor(-1.0)}, ValueError, "epsilon must be finite and at least 0, but got -1"),
    ({"step": "one"}, TypeError, "step must be a number or a Tensor of one, but got 'one'"),
    ({"learning_rate": np.ones(2)}, ValueError, r"learning_rate must be one number, but got shape \(2,\)"),
    ({"in_place": True}, TypeError, "param, m and v must be MindSpore Parameters where in_place=True"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_errors_of_the_update(changes, error, message):
    x = np.ones(2, np.float32)
    with pytest.raises(error, match=message):
        adam_update(**({"param": x, "m": x, "v": x, "grad": x, "step": 1} | changes))


@pytest.mark.parametrize(
    ("rows", "values", "message"),
    [
        (np.array([0, 4]), np.ones((2, 2), np.float32), r"indices of param must be in \[0, 4\), but got \[4\]"),
        (np.array([0]), np.ones((2, 2), np.float32), r"shapes \(n, 2\) and \(n,\), but got \(2, 2\) and"),
    ],
)
def test_errors_of_sparse_gradients(rows, values, message):
    x = np.ones((4, 2), np.float32)
    with pytest.raises(ValueError, match=message):
        sparse_adam_update(x, x, x, values, rows, 1)
    with pytest.raises(ValueError, match=message.replace("param", "w0")):
        Adam(make_parameters([x]))(((Tensor(values), Tensor(rows)),))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), ValueError, "params must not be empty"),
        ((np.ones(2),), TypeError, "params must hold Parameters, but item 0 is float64"),
        ((None,), TypeError, "params must be a list of Parameters, .* but got NoneType"),
        (([{"lr": 1.0}],), ValueError, r"group 0 must have a list under 'params', but has \['lr'\]"),
        ((make_parameters([np.ones(2, np.int32)]),), TypeError, "parameter w0 must be float16, .*, but is Int32"),
        ((make_parameters([np.ones(2)]), "fast"), TypeError, "the learning rate must be a number, .*, but got 'fast'"),
        (([{"params": make_parameters([np.ones(2)]), "lr": True}],), TypeError, "lr of group 0 must .*, but got True"),
    ],
)
def test_errors_of_parameters_and_rates(arguments, error, message):
    with pytest.raises(error, match=message):
        Adam(*arguments)


@pytest.mark.parametrize(
    ("gradients", "error", "message"),
    [
        (
            Tensor([1.0, 2.0]),
            TypeError,
            "gradients must be a tuple or list with one Tensor for each of the 1 parameters",
        ),
        ((), ValueError, "gradients must be 1, one for each parameter in the order of optimizer.parameters, but got 0"),
        ((np.ones(2),), TypeError, "gradient of w0 must be a Tensor, but got ndarray"),
        ((Tensor([1.0]),), ValueError, r"gradient of w0 must have shape \(2,\), but got \(1,\)"),
    ],
)
def test_errors_of_gradients(gradients, error, message):
    with pytest.raises(error, match=message):
        Adam(make_parameters([np.ones(2, np.float32)]))(gradients)


def test_errors_of_the_optimizer():
    x = make_parameters([np.ones(2, np.float32)])
    with pytest.raises(ValueError, match="beta2 must be finite and at least 0 and less than 1, but got 1.0"):
        Adam(x, beta2=1.0)
    with pytest.raises(TypeError, match="use_nesterov must be True or False, but got 1"):
        Adam(x, use_nesterov=1)
    with pytest.raises(KeyError, match="missing .*w0/Adam.* unknown .*'w0/m'"):
        Adam(x).load_state_dict({"beta1_power": 0.9, "beta2_power": 0.999, "w0/m": np.ones(2)})
    with pytest.raises(ValueError, match=r"w0/Adam must have shape \(2, 4\), but got \(4, 2\)"):
        optimizer = Adam(make_parameters([np.ones((2, 4), np.float32)]))
        optimizer.load_state_dict(optimizer.state_dict() | {"w0/Adam": np.ones((4, 2))})
    with pytest.raises(ValueError, match="beta1 must be finite and at least 0 and less than 1, but got 2"):
        Adam(x, beta1=lambda: 2)
