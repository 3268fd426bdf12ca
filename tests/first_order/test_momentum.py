"""Momentum against ONNX's reference evaluator, and PyTorch's SGD for trajectories with one meaning in both."""

import mindspore as ms
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor
from onnx.reference import ReferenceEvaluator

from first_order import Momentum, momentum_update
from tests.first_order.arrays import SHAPES, arrays, assert_close, make_parameters, tensors

DOMAIN = "ai.onnx.preview.training"


def onnx_momentum(rate, count, params, grads, velocities, *, alpha, beta, norm_coefficient, mode):
    """The operator itself on any number of tensors: (params, velocities)."""
    letters = [f"{letter}{i}" for letter in "XGV" for i in range(len(params))]
    outputs = [f"{letter}{i}" for letter in "YW" for i in range(len(params))]
    node = onnx.helper.make_node(
        "Momentum", ["R", "T", *letters], outputs, domain=DOMAIN, alpha=alpha, beta=beta,
        norm_coefficient=norm_coefficient, mode=mode,
    )  # fmt: skip
    kind = onnx.helper.np_dtype_to_tensor_dtype(params[0].dtype)
    inputs = [onnx.helper.make_tensor_value_info("R", kind, ())]
    inputs += [onnx.helper.make_tensor_value_info("T", onnx.TensorProto.INT64, ())]
    inputs += [onnx.helper.make_tensor_value_info(name, kind, None) for name in letters]
    results = [onnx.helper.make_tensor_value_info(name, kind, None) for name in outputs]
    graph = onnx.helper.make_graph([node], "momentum", inputs, results)
    opsets = [onnx.helper.make_opsetid(DOMAIN, 1), onnx.helper.make_opsetid("", 20)]
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
    values = dict(zip(letters, [*params, *grads, *velocities], strict=True))
    given_rate = np.array(rate, params[0].dtype)
    found = evaluator.run(None, values | {"R": given_rate, "T": np.array(count, np.int64)})
    found = [np.asarray(value, params[0].dtype) for value in found]  # NumPy makes float64 of a 0-d float32
    return found[: len(params)], found[len(params) :]


def single(value):
    """Attributes of an ONNX operator are float32."""
    return float(np.float32(value))


hypers = st.fixed_dictionaries({
    "alpha": st.floats(0, 1).map(single), "beta": st.floats(0, 1).map(single),
    "norm_coefficient": st.floats(0, 0.1).map(single), "mode": st.sampled_from(["standard", "nesterov"]),
})  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(hypers=hypers, rate=st.floats(0, 1), count=st.sampled_from([0, 1, 7]), seed=st.integers(0, 99),
       dtype=st.sampled_from([np.float32, np.float64]), tensors_=st.integers(1, 3))  # fmt: skip
def test_the_update_is_the_operator(hypers, rate, count, seed, dtype, tensors_):
    shapes = [SHAPES[(seed + i) % len(SHAPES)] for i in range(tensors_)]
    x, g, v = (arrays(seed + k, shapes, dtype) for k in range(3))
    theirs = onnx_momentum(rate, count, x, g, v, **hypers)
    ours = momentum_update(rate, count, x, g, v, **hypers)
    for mine, other in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
        assert_close(mine, other, dtype)


@pytest.mark.parametrize("mode", ["standard", "nesterov"])
@pytest.mark.parametrize(("dtype", "graph"), [(np.float32, True), (np.float64, False)])
def test_the_optimizer_is_the_operator_over_50_steps(mode, dtype, graph):
    ms.set_context(mode=ms.GRAPH_MODE if graph else ms.PYNATIVE_MODE)
    options = {"alpha": single(0.9), "beta": single(0.6), "norm_coefficient": single(0.01), "mode": mode}
    x = arrays(0, dtype=dtype)
    v, optimizer = [a * 0 for a in x], Momentum(make_parameters(x), 0.05, **options)
    for count in range(50):
        g = arrays(count + 1, dtype=dtype)
        x, v = onnx_momentum(0.05, count, x, g, v, **options)
        optimizer(tensors(g))
    for mine, other in zip([*optimizer.parameters, *optimizer.velocities], [*x, *v], strict=True):
        assert_close(mine, other, dtype)


@pytest.mark.parametrize(("norm_coefficient", "decay"), [(0.0, 0.0), (0.01, 0.0), (0.0, 0.01)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_path_of_other_devices_gives_the_same(dtype, norm_coefficient, decay):
    """On a GPU MindSpore's kernel knows no float64, and no graph that reads a weight as well."""
    moved = []
    for on_cpu in (True, False):
        parameters = make_parameters(arrays(0, dtype=dtype))
        groups = [{"params": parameters, "weight_decay": decay}] if decay else parameters
        optimizer = Momentum(groups, 0.05, norm_coefficient=norm_coefficient, beta=0.6)
        optimizer.on_cpu = on_cpu
        for count in range(3):
            optimizer([Tensor(g) for g in arrays(count + 1, dtype=dtype)])
        assert optimizer._by_kernel(parameters[0].dtype) == (
            on_cpu or dtype == np.float32 and not norm_coefficient + decay
        )
        moved.append([p.asnumpy() for p in parameters])
    for one, other in zip(*moved, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_with_beta_1_it_is_also_pytorchs_sgd(mode):
    values = arrays(0)
    theirs = [torch.nn.Parameter(torch.from_numpy(v.copy())) for v in values]
    sgd = torch.optim.SGD(theirs, 0.1, momentum=0.9, weight_decay=0.01, nesterov=mode == "nesterov")
    ours = make_parameters(values)
    optimizer = Momentum(ours, 0.1, norm_coefficient=0.01, mode=mode)
    for step in range(20):
        g = arrays(step + 1)
        for parameter, gradient in zip(theirs, g, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        sgd.step()
        optimizer(tensors(g))
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine, other.detach().numpy(), np.float64)


def test_the_update_works_inside_a_graph():
    x, g, v = (arrays(k, [(3,), (2, 2)]) for k in range(3))
    options = {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.1, "mode": "nesterov"}

    @ms.jit
    def compiled(count, a, b, c, d, e, f):
        return momentum_update(
            0.1, count, [a, b], [c, d], [e, f], alpha=0.9, beta=0.5, norm_coefficient=0.1, mode="nesterov"
        )

    for count in (0, 3):
        ours = compiled(Tensor(count), *tensors([*x, *g, *v]))
        theirs = momentum_update(0.1, count, x, g, v, **options)
        for mine, other in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
            np.testing.assert_allclose(mine.asnumpy(), other.asnumpy(), rtol=1e-14)


def test_state_moves_to_the_operator_and_back():
    options = {"alpha": single(0.9), "beta": 0.5, "norm_coefficient": 0.0, "mode": "nesterov"}
    values, g = arrays(0), [arrays(k + 1) for k in range(4)]
    optimizer = Momentum(make_parameters(values), 0.1, **options)
    for step in g[:2]:
        optimizer(tensors(step))
    state = optimizer.state_dict()
    x, v = onnx_momentum(state["R"], state["T"], state["X"], g[2], state["V"], **options)
    optimizer(tensors(g[2]))
    for mine, other in zip([*optimizer.parameters, *optimizer.velocities], [*x, *v], strict=True):
        assert_close(mine, other, np.float64)
    resumed = Momentum(make_parameters(values), 0.3, **options)
    resumed(tensors(g[0]))
    resumed.load_state_dict({"R": np.array(0.1), "T": state["T"] + 1, "X": x, "V": v})
    resumed(tensors(g[3]))
    optimizer(tensors(g[3]))
    for mine, other in zip(resumed.parameters, optimizer.parameters, strict=True):
        assert_close(mine, other.asnumpy(), np.float64)


X = np.ones(2)
BAD = [
    ({"mode": "Nesterov"}, ValueError, "mode must be one of standard, nesterov, but got 'Nesterov'"),
    ({"params": [X, X]}, ValueError, "must be of one length, but got 2, 1 and 1"),
    ({"params": [X.astype(np.float16)]}, TypeError, r"params\[0\] must be of type Float32, Float64, but got Float16"),
    ({"grads": [np.ones(3)]}, ValueError, r"grads\[0\] must have the shape of params\[0\], \(2,\), but got \(3,\)"),
    ({"update_count": 0.5}, ValueError, "update_count must be a whole number from 0, but got 0.5"),
    ({"update_count": float("inf")}, ValueError, "update_count must be finite, but got inf"),
    ({"alpha": float("nan")}, ValueError, "alpha must be finite, but got nan"),
    ({"params": [], "grads": [], "velocities": []}, ValueError, "params must hold at least one tensor"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_errors_of_the_update(changes, error, message):
    arguments = {
        "learning_rate": 0.1, "update_count": 0, "params": [X], "grads": [X], "velocities": [X], "alpha": 0.9,
        "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard",
    }  # fmt: skip
    with pytest.raises(error, match=message):
        momentum_update(**(arguments | changes))


def test_errors_of_the_optimizer():
    with pytest.raises(ValueError, match="mode must be one of standard, nesterov, but got True"):
        Momentum(make_parameters([X]), 0.1, mode=True)
    with pytest.raises(ValueError, match="alpha must be finite and at least 0, but got -1"):
        Momentum(make_parameters([X]), 0.1, -1)
    with pytest.raises(ValueError, match=r"V\[0\] must have shape \(2,\), but got \(3,\)"):
        Momentum(make_parameters([X]), 0.1).load_state_dict({"T": 0, "V": [np.ones(3)]})
    with pytest.raises(ValueError, match=r"X\[0\] must have shape \(2, 4\), but got \(4, 2\)"):
        grid = np.ones((2, 4))
        Momentum(make_parameters([grid]), 0.1).load_state_dict({"T": 0, "X": [grid.T], "V": [grid]})
    with pytest.raises(ValueError, match="T must be a whole number from 0, but got -1"):
        Momentum(make_parameters([X]), 0.1).load_state_dict({"T": np.int64(-1), "V": [X]})
    with pytest.raises(ValueError, match="R must be finite and at least 0, but got -0.1"):
        Momentum(make_parameters([X]), 0.1).load_state_dict({"R": np.array(-0.1), "T": 0, "V": [X]})
    with pytest.raises(ValueError, match="leave R out"):
        Momentum(make_parameters([X]), [0.1, 0.2]).load_state_dict({"R": 0.1, "T": 0, "V": [X]})
    with pytest.raises(TypeError, match="Momentum takes no sparse gradients"):
        Momentum(make_parameters([X]), 0.1)(((Tensor(X), Tensor([0, 1])),))
