"""One scenario for every optimizer, every way to call it, compiled and not: no step ever uses something stale.

Before every step the loss is computed by the network itself. The step must return it, whatever happened before: weights
frozen and back, layers in evaluation mode and back, new values, a resume.
"""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, Model

import first_order
import thor
from tests.support.networks import Mlp, batch, fill, never, squared_error, values


def by_inverses(net, **options):
    return thor.THOR(net, 0.02, 0.3, interval=4, factor_interval=2, factor_decay=0.9, **options)


def in_eigenbases(net, **options):
    return thor.THOR(net, 0.01, interval=4, factor_interval=2, **options)


THORS = (by_inverses, in_eigenbases)
OPTIMIZERS = {
    "THOR": by_inverses,
    "THOR, eigenbases": in_eigenbases,
    "Momentum": lambda net: nn.Momentum(net.trainable_params(), 0.02, 0.9),
    "Adam": lambda net: first_order.Adam(net.trainable_params(), 0.01),
    "Muon": lambda net: first_order.Muon(net.trainable_params(), 0.01),
    "SOAP": lambda net: first_order.SOAP(net.trainable_params(), 0.01, max_precond_dim=3, precondition_frequency=2),
    "AdamWeightDecay": lambda net: nn.AdamWeightDecay(net.trainable_params(), 0.01, weight_decay=0.1),
}


class Network(nn.Cell):
    """Dense, BatchNorm, Dense."""

    def __init__(self, seed=0):
        super().__init__()
        self.first, self.norm = nn.Dense(5, 4, has_bias=False), nn.BatchNorm1d(4)
        self.tanh, self.last = nn.Tanh(), nn.Dense(4, 3)
        fill(self, seed)
        self.set_train()

    def construct(self, x):
        return self.last(self.tanh(self.norm(self.first(x))))


def with_output(output, target):
    return squared_error(output, target), output


class ByStep:
    """``step(x, y)``."""

    def __init__(self, net, optimizer, **options):
        self.step = thor.TrainStep(net, with_output, optimizer, has_aux=True, **options)

    def __call__(self, x, y):
        loss, output = self.step(x, y)
        return float(loss), output

    @property
    def graphs(self):
        return self.step.graphs


class ByModel(ByStep):
    """``Model(step).train(...)``, one batch at a time; ``Model`` puts all layers in training mode at first."""

    def __call__(self, x, y):
        kept = Keep(self.step.network.norm)
        dataset = NumpySlicesDataset((x.asnumpy()[None], y.asnumpy()[None]), shuffle=False)
        Model(self.step).train(1, dataset, [kept], dataset_sink_mode=False)
        loss, output = kept.outputs
        return float(loss), output


class Keep(Callback):
    def __init__(self, cell):
        super().__init__()
        self.cell, self.training = cell, cell.training

    def on_train_step_begin(self, run_context):
        self.cell.set_train(self.training)

    def on_train_step_end(self, run_context):
        self.outputs = run_context.original_args().net_outputs


class ByLoop:
    """``loss, gradients = grad_fn(x, y)``, then ``optimizer(gradients)``."""

    def __init__(self, net, optimizer, jit=True):
        def forward(x, y):
            return with_output(net(x), y)

        self.grad_fn, self.optimizer = thor.value_and_grad(forward, optimizer, has_aux=True, jit=jit), optimizer

    def __call__(self, x, y):
        (loss, output), gradients = self.grad_fn(x, y)
        self.optimizer(gradients)
        return float(loss), output

    @property
    def graphs(self):
        return self.grad_fn.graphs


WAYS = {"TrainStep": ByStep, "Model": ByModel, "value_and_grad": ByLoop}
MODES = {"graph": ("GRAPH_MODE", True), "eager": ("PYNATIVE_MODE", False)}
#: MindSpore's other mode runs the same functions: a THOR and an optimizer of MindSpore's show that it does.
OTHER_MODES = {"pynative": ("PYNATIVE_MODE", True), "graph-eager": ("GRAPH_MODE", False)}
ROWS = {(name, kind): (OPTIMIZERS[name], *MODES[kind]) for name in OPTIMIZERS for kind in MODES} | {
    (name, kind): (OPTIMIZERS[name], *OTHER_MODES[kind])
    for name in ("THOR, eigenbases", "Momentum")
    for kind in OTHER_MODES
}
TABLE = pytest.mark.parametrize(
    ("make", "mode", "jit"), ROWS.values(), ids=["-".join(row) for row in ROWS], indirect=["mode"]
)


@TABLE
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_step_is_never_stale(make, way, mode, jit, tmp_path):
    net = Network()
    optimizer = make(net)
    step = way(net, optimizer, jit=jit)
    x, y = batch(8)

    def advance(count=4):
        """Steps of every kind; each returns the loss and the output of the network as it is."""
        for _ in range(count):
            wanted = net.construct(x)  # layer by layer: a graph of the whole network overlooks a layer's mode
            loss, output = step(x, y)
            np.testing.assert_allclose(output.asnumpy(), wanted.asnumpy(), rtol=1e-3, atol=1e-4)
            assert loss == pytest.approx(float(squared_error(wanted, y)), rel=1e-4)
        return loss

    first = advance(1)
    assert advance() < first
    before = values(net)
    net.first.weight.requires_grad = False
    net.norm.set_train(False)
    advance()
    moved = {name for name, value in values(net).items() if not np.array_equal(value, before[name])}
    if way is ByLoop and make not in THORS:  # it moves its weights itself, by momentum and decay
        moved.discard("first.weight")
    assert moved == {"norm.gamma", "norm.beta", "last.weight", "last.bias"}
    net.first.weight.requires_grad = True
    net.norm.set_train(True)
    graphs = step.graphs
    advance()
    moved = {name for name, value in values(net).items() if not np.array_equal(value, before[name])}
    assert moved == before.keys()

    for weight in net.trainable_params():
        weight.set_data(Tensor(0.5 * weight.asnumpy()))
    advance()
    assert step.graphs == graphs, "neither known flags nor new values need another graph"

    for name, cell in (("net", net), ("optimizer", optimizer)):
        ms.save_checkpoint(cell, str(tmp_path / f"{name}.ckpt"))
    other = Network(seed=1)
    resumed = make(other)
    again = way(other, resumed, jit=jit)
    for name, cell in (("net", other), ("optimizer", resumed)):
        ms.load_param_into_net(cell, ms.load_checkpoint(str(tmp_path / f"{name}.ckpt")))
    assert [again(x, y)[0] for _ in range(4)] == [step(x, y)[0] for _ in range(4)]


def never_renewed(net):
    optimizer = in_eigenbases(net)
    never(optimizer)
    return optimizer


class Halves:
    """The mean gradient of two micro-batches, and gradients of a loss times 8, by hand."""

    def __init__(self, net, optimizer, jit):
        def scaled(x, y):
            return 8.0 * squared_error(net(x), y)

        self.grad_fn, self.optimizer = thor.value_and_grad(scaled, optimizer, jit=jit), optimizer

    def __call__(self, *halves):
        (one, first), (two, second) = [self.grad_fn(*half) for half in halves]
        self.optimizer(tuple((a + b) / 16.0 for a, b in zip(first, second, strict=True)))
        return float(one + two) / 16.0


@TABLE
@pytest.mark.parametrize("by_hand", [False, True], ids=["TrainStep", "value_and_grad"])
def test_accumulated_and_scaled_steps_are_those_of_the_whole_batch(make, by_hand, mode, jit):
    """For THOR by hand, curvature is that of the last micro-batch and of a loss 8 times as large: it is left out."""
    net, other = Mlp(), Mlp()
    if by_hand:
        make = {by_inverses: rarely, in_eigenbases: never_renewed}.get(make, make)
        halves = Halves(other, make(other), jit)
    elif make in THORS:
        halves = thor.TrainStep(other, squared_error, make(other, loss_scale=8.0), accumulate=2, jit=jit)
    else:
        halves = thor.TrainStep(other, squared_error, make(other), accumulate=2, jit=jit, loss_scale=8.0)
    whole = thor.TrainStep(net, squared_error, make(net), jit=False)
    x, y = batch(8)
    parts = [(x[:4], y[:4]), (x[4:], y[4:])]
    for _ in range(5):
        wanted = float(whole(x, y))
        found = halves(*parts) if by_hand else [float(halves(*part)) for part in parts][-1]
        assert found == pytest.approx(wanted, rel=1e-4)
    for name, value in values(net).items():
        np.testing.assert_allclose(values(other)[name], value, rtol=2e-3, atol=2e-4, err_msg=name)


def rarely(net):
    """A THOR of so large a damping that it is Momentum."""
    return thor.THOR(net, 0.02 * 1e10, 1e10, interval=4)


def test_clipping_by_the_global_norm_is_the_same_by_step_and_by_hand():
    net, other = Mlp(), Mlp()
    step = thor.TrainStep(net, squared_error, OPTIMIZERS["Momentum"](net), clip_norm=0.5)
    optimizer = OPTIMIZERS["Momentum"](other)

    def forward(x, y):
        return squared_error(other(x), y)

    grad_fn = thor.value_and_grad(forward, optimizer)
    x, y = batch(scale=3.0)
    for _ in range(4):
        loss, gradients = grad_fn(x, y)
        optimizer(ops.clip_by_global_norm(gradients, 0.5))
        assert float(step(x, y)) == pytest.approx(float(loss), rel=1e-5)
    with pytest.raises(ValueError, match="clip_norm must be finite and greater than 0, but got 0"):
        thor.TrainStep(net, squared_error, OPTIMIZERS["Momentum"](net), clip_norm=0)
    with pytest.raises(ValueError, match="clip_norm is for an nn.Optimizer: a THOR limits its steps by its own clip"):
        thor.TrainStep(net, squared_error, OPTIMIZERS["THOR"](net), clip_norm=1.0)
