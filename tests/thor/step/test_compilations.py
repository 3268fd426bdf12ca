"""Compilations are counted: a step of a deep network is compiled once per phase, and never again."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import thor
from tests.support.compilations import count_compilations

pytestmark = pytest.mark.slow

LAYERS = 54  # of ResNet-50


@pytest.fixture
def compiled(monkeypatch):
    """How many graphs MindSpore has compiled since the test began."""
    return count_compilations(monkeypatch)


def test_each_compilation_is_counted(compiled):
    """A tuple of Tensors is compiled at every call, separate Tensors are once: the trap that the next test is for."""

    @ms.jit
    def total(*tensors):
        return tensors[0] + tensors[1]

    @ms.jit
    def total_of_tuple(tensors):
        return tensors[0] + tensors[1]

    for expected in (1, 1, 1):
        total(Tensor(1.0), Tensor(2.0))
        assert compiled() == expected
    for expected in (2, 3, 4):
        total_of_tuple((Tensor(1.0), Tensor(2.0)))
        assert compiled() == expected


def test_a_deep_network_is_compiled_once_per_phase(compiled):
    """Plain: one graph. Curvature: one up to the factors, one that averages them, one to the weights. Refresh: none."""
    rng = np.random.default_rng(0)
    net = nn.SequentialCell([nn.Dense(4, 4, has_bias=False) for _ in range(LAYERS)])
    for weight in net.trainable_params():  # near the identity: a signal passes through all layers
        weight.set_data(Tensor((np.eye(4) + 0.01 * rng.standard_normal((4, 4))).astype(np.float32)))
    optimizer = thor.THOR(
        net, 1e-3, 1.0, interval=6, factor_interval=2, refresh=thor.TraceRule.thor_nt(), split="block",
        inverse="lapack",  # what accelerators invert with is compiled as well
    )  # fmt: skip
    step = thor.TrainStep(net, nn.MSELoss(), optimizer)
    phases, graphs, losses = [], [], []
    for _ in range(14):
        before = compiled()
        phases.append(optimizer.phase)
        inputs = rng.standard_normal((4, 4)).astype(np.float32)
        losses.append(float(step(Tensor(inputs), Tensor(inputs)).asnumpy()))
        graphs.append(compiled() - before)
    cycle = ["refresh", "plain", "curvature", "plain", "curvature", "plain"]
    assert len(optimizer.layers) == LAYERS and phases == (3 * cycle)[:14]
    assert graphs == [3, 1] + 12 * [0]
    assert step.compilations == 1
    assert np.isfinite(losses).all() and all(layer.refreshes == 3 for layer in optimizer.layers)
