"""One table: what every optimizer of this project can be relied on for, however it is run."""

from __future__ import annotations

import gc
import weakref
from functools import cache, partial

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import thor
from first_order import SOAP, Adafactor, Adam, Momentum, Muon
from tests.support.compilations import count_compilations
from thor.runtime.modes import in_mode

FIRST_ORDER = {
    "Adam": partial(Adam, learning_rate=0.02),
    "Adam nesterov": partial(Adam, learning_rate=0.02, use_nesterov=True),
    "Momentum": partial(Momentum, learning_rate=0.05),
    "Momentum nesterov": partial(Momentum, learning_rate=0.05, mode="nesterov", beta=0.9, norm_coefficient=1e-4),
    "Adafactor": partial(Adafactor, lr=0.05),
    "Muon": partial(Muon, learning_rate=0.02, weight_decay=0.0),
    "Muon adjusted": partial(Muon, learning_rate=0.02, weight_decay=0, adjust_lr_fn="match_rms_adamw", nesterov=False),
    # one-sided: the first gradient of 5 x 4 has rank 4, so that the last vector of the longer side would be arbitrary
    "SOAP": partial(SOAP, learning_rate=0.02, weight_decay=0.0, precondition_frequency=2, max_precond_dim=4),
}
#: Calls after which weights have moved: SOAP's first one only starts its eigenbases.
FIRST_MOVE = {"SOAP": 2}
THORS = {"THOR": {}, "THOR, inverses": {"damping": 0.1}}
EVERY = [*FIRST_ORDER, *THORS]
MODES = {"GRAPH": ms.GRAPH_MODE, "PYNATIVE": ms.PYNATIVE_MODE}
RATE = {"Adafactor": "lr"}


@pytest.fixture(autouse=True, params=MODES)
def mode(request):
    with in_mode(MODES[request.param]):
        yield request.param


class Net(nn.Cell):
    """Two layers, weights by seed."""

    def __init__(self, dtype=np.float32):
        super().__init__()
        rng = np.random.default_rng(0)
        kind = Tensor(np.zeros(1, dtype)).dtype
        self.first, self.second = nn.Dense(4, 5, dtype=kind), nn.Dense(5, 3, dtype=kind)
        for p in self.trainable_params():
            p.set_data(Tensor((0.5 * rng.standard_normal(p.shape)).astype(dtype)))

    def construct(self, x):
        return self.second(ops.tanh(self.first(x)))


def data(dtype=np.float32):
    rng = np.random.default_rng(1)
    return Tensor(rng.standard_normal((6, 4)).astype(dtype)), Tensor(rng.standard_normal((6, 3)).astype(dtype))


class Squared(nn.Cell):
    """Mean squared error."""

    def construct(self, output, target):
        return ((output - target) ** 2).mean()


squared = Squared()


def weights(net):
    return [p.asnumpy().copy() for p in net.trainable_params()]


def stepper(kind, way, net, params=None, **options):
    """(optimizer, function that does one step on a batch and answers with the loss)."""
    params = net.trainable_params() if params is None else params
    if kind in THORS:
        optimizer = thor.THOR(net, **({"learning_rate": 0.02, "interval": 3} | THORS[kind] | options))
        step = thor.TrainStep(net, squared, optimizer)
        if way == "Model":
            return optimizer, lambda x, y: _model_step(ms.Model(step), x, y)
        return optimizer, step
    optimizer = FIRST_ORDER[kind](params, **options)
    if way == "Model":
        model = ms.Model(net, squared, optimizer)
        return optimizer, lambda x, y: _model_step(model, x, y)
    differentiate = ms.value_and_grad(lambda_of(net), None, optimizer.parameters)

    def step(x, y):
        loss, gradients = differentiate(x, y)
        return ops.depend(loss, optimizer(gradients))

    if way == "jit":
        return optimizer, ms.jit(step)

    def functional(x, y):
        loss, gradients = differentiate(x, y)
        optimizer(gradients)
        return loss

    return optimizer, functional


def lambda_of(net):
    def forward(x, y):
        return squared(net(x), y)

    return forward


def _model_step(model, x, y):
    rows = ms.dataset.NumpySlicesDataset((x.asnumpy()[None], y.asnumpy()[None]), ["x", "y"], shuffle=False)
    losses = []

    class Keep(ms.Callback):
        def on_train_step_end(self, run_context):
            losses.append(run_context.original_args().net_outputs)

    model.train(1, rows, callbacks=[Keep()], dataset_sink_mode=False)
    return losses[0]


def run(kind, way, steps=4, dtype=np.float32, **options):
    net = Net(dtype)
    _, step = stepper(kind, way, net, **options)
    losses = [float(step(*data(dtype)).asnumpy()) for _ in range(steps)]
    return losses, weights(net)


@pytest.mark.parametrize("kind", EVERY)
def test_model_functional_and_jit_do_the_same(kind):
    ways = ("Model", "functional") if kind in THORS else ("Model", "functional", "jit")
    (first, moved), *others = [run(kind, way) for way in ways]
    assert first[-1] < first[0]
    for losses, values in others:
        np.testing.assert_allclose(losses, first, rtol=1e-5)
        for one, other in zip(values, moved, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@cache
def moved_in_float32(kind):
    return run(kind, "jit")[1]


@pytest.mark.parametrize("mode", ["GRAPH"], indirect=True)
@pytest.mark.parametrize("kind", FIRST_ORDER)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_every_type_keeps_its_type_and_follows_float32(kind, dtype):
    wanted = moved_in_float32(kind)
    _, found = run(kind, "jit", dtype=dtype)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        # where a gradient is nearly zero, float16 may flip its sign and so one of Adam's steps
        np.testing.assert_allclose(np.abs(one - other).mean(), 0, atol=1e-2 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("kind", FIRST_ORDER)
def test_groups_have_their_own_rate_and_decay(kind):
    net = Net()
    before = weights(net)
    first, second = net.first.trainable_params(), net.second.trainable_params()
    groups = [{"params": first, "lr": 0.0, "weight_decay": 0.5}, {"params": second, "weight_decay": 0.0}]
    move_once(kind, net, groups)
    after = weights(net)
    assert all((a == b).all() for a, b in zip(after[:2], before[:2], strict=True))
    found = []
    for decay in (0.5, 0.0):
        decayed = Net()
        groups = [{"params": decayed.first.trainable_params(), "weight_decay": decay},
                  {"params": decayed.second.trainable_params(), "weight_decay": 0.0}]  # fmt: skip
        move_once(kind, decayed, groups)
        found.append(weights(decayed))
    assert not np.allclose(found[0][0], found[1][0], atol=1e-6), "the decay is the group's own"
    for a, b in zip(found[0][2:], found[1][2:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)  # MindSpore's kernel rounds otherwise
    alone = Net()
    move_once(kind, alone)
    for a, b in zip(after[2:], weights(alone)[2:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def move_once(kind, net, params=None):
    _, step = stepper(kind, "functional", net, params)
    for _ in range(FIRST_MOVE.get(kind, 1)):
        step(*data())


@pytest.mark.parametrize("kind", EVERY)
def test_schedules_numbers_lists_and_functions_agree(kind):
    name = RATE.get(kind, "learning_rate")
    rates, at = [0.04, 0.02, 0.01], [0]

    class Halving(nn.learning_rate_schedule.LearningRateSchedule):
        def construct(self, step):
            return 0.04 * ops.pow(Tensor(0.5, ms.float32), step.astype(ms.float32))

    given = [rates] if kind in THORS else [rates, Tensor(rates, ms.float32), Halving()]  # THOR hands on to its inner
    results = [run(kind, "functional", 3, **{name: rate})[1] for rate in given]
    net = Net()
    function = (lambda step: rates[step]) if kind in THORS else (lambda: rates[at[0]])
    _, step = stepper(kind, "functional", net, **{name: function})
    for at[0] in range(3):
        step(*data())
    for values in [*results[1:], weights(net)]:
        for one, other in zip(values, results[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "stepped"),
    [*((kind, False) for kind in THORS), *((kind, stepped) for kind in FIRST_ORDER for stepped in (False, True))],
)
def test_a_checkpoint_goes_on_bit_for_bit(kind, stepped, tmp_path):
    """Loaded into a fresh optimizer, or into one that has stepped, and so was compiled, already.

    First-order optimizers get gradients from outside: a compiled function of the user's own that computes them would
    go on with the weights' old storage (MindSpore 2.10).
    """
    sides = []
    for _ in range(2):
        net = Net()
        optimizer, step = stepper(kind, "functional", net)
        sides.append((net, optimizer, step if kind in THORS else partial(given_step, optimizer)))
    (net, optimizer, step), (fresh, resumed, again) = sides
    for _ in range(2):
        step(*data())
    if stepped:
        again(*data())
    for index, (source, target) in enumerate([(net, fresh), (optimizer, resumed)]):
        ms.save_checkpoint(source, str(tmp_path / f"{index}.ckpt"))
        assert ms.load_param_into_net(target, ms.load_checkpoint(str(tmp_path / f"{index}.ckpt"))) == ([], [])
    for _ in range(3):
        assert step(*data()).asnumpy().tobytes() == again(*data()).asnumpy().tobytes()
    for one, other in zip(
        [*net.get_parameters(), *optimizer.get_parameters()], [*fresh.get_parameters(), *resumed.get_parameters()],
        strict=True,
    ):  # fmt: skip
        assert one.asnumpy().tobytes() == other.asnumpy().tobytes(), one.name


def given_step(optimizer, x, y):
    """A step whose gradients depend on how many there were."""
    rng = np.random.default_rng(int(optimizer.global_step.asnumpy()[0]))
    return optimizer(tuple(Tensor(rng.standard_normal(p.shape).astype(np.float32)) for p in optimizer.parameters))


@pytest.mark.parametrize("mode", ["PYNATIVE"], indirect=True)
@pytest.mark.parametrize("kind", EVERY)
def test_an_optimizer_is_let_go_of_once_it_has_stepped(kind):
    optimizer, step = stepper(kind, "functional", Net())
    step(*data())
    gone = weakref.ref(optimizer)
    del optimizer, step
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((kind, "functional") for kind in THORS),
        *((kind, way) for kind in FIRST_ORDER for way in ("functional", "jit")),
    ],
)
def test_the_second_step_compiles_nothing(kind, way, monkeypatch):
    compiled = count_compilations(monkeypatch)
    _, step = stepper(kind, way, Net(), **({"interval": 100} if kind in THORS else {}))
    for _ in range(2 if kind in THORS else 1):  # its first two steps are of two kinds
        step(*data())
    after = compiled()
    for _ in range(2):
        step(*data())
    assert 0 < after == compiled()
