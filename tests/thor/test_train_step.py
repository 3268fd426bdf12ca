"""TrainStep: the same steps in both modes, inside ms.Model, with any inner optimizer, limited and decayed."""

from importlib import import_module

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train import EarlyStopping, LossMonitor, ModelCheckpoint, TimeMonitor

import first_order
import thor
from tests.support.networks import (  # fmt: skip
    Mixed,
    Mlp,
    assert_equal,
    batch,
    gradients,
    images,
    make,
    matrix,
    never,
    squared_error,
    values,
)

SETTINGS = {"momentum": 0.9, "interval": 2, "factor_interval": 1, "factor_decay": 0.9, "block_size": 6}


def steps(step, count=4, make_batch=images, first=0):
    return [float(step(*make_batch(seed=seed)).asnumpy()) for seed in range(first, first + count)]


@pytest.fixture(scope="module")
def by_hand():
    """(losses, weights, state) of four steps without any compilation."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = Mixed()
    optimizer, step = make(net, **SETTINGS)
    found = steps(step), values(net), values(optimizer)
    ms.set_context(mode=before)
    return found


def test_compiled_steps_equal_those_run_operator_by_operator_in_both_modes(mode, by_hand):
    net = Mixed()
    optimizer, step = make(net, jit=True, **SETTINGS)
    losses, weights, state = by_hand
    np.testing.assert_allclose(steps(step), losses, rtol=1e-4)
    for name, value in values(net).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-3, atol=1e-4)
    for name, value in values(optimizer).items():
        np.testing.assert_allclose(value, state[name], rtol=1e-2, atol=1e-3 * max(1, np.abs(state[name]).max()))


def test_a_network_that_returns_its_loss_needs_no_loss_function():
    class WithLoss(nn.Cell):
        def __init__(self):
            super().__init__()
            self.net = Mlp()

        def construct(self, x, y):
            return squared_error(self.net(x), y)

    plain_step, step = make(Mlp())[1], make(WithLoss(), loss_fn=None)[1]
    for seed in range(3):
        assert step(*batch(seed=seed)).asnumpy() == plain_step(*batch(seed=seed)).asnumpy()


def pairs(count=12, seed=5):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 5)).astype(np.float32)
    return [(row, np.tanh(row[:3])) for row in x]


def dataset(count=12):
    return ds.GeneratorDataset(pairs(count), ["x", "y"], shuffle=False).batch(4)


def model(net, step):
    evaluation = nn.WithEvalCell(net, nn.MSELoss())
    return ms.Model(step, eval_network=evaluation, metrics={"mse": nn.MSE()}, eval_indexes=[0, 1, 2])


def test_model_train_equals_a_plain_loop(tmp_path, capsys):
    loop_net, net = Mlp(), Mlp()
    _, loop = make(loop_net, jit=True, **SETTINGS)
    for _ in range(2):
        for x, y in dataset():
            loop(x, y)
    optimizer, step = make(net, jit=True, **SETTINGS)
    checkpoint = ModelCheckpoint(prefix="m", directory=str(tmp_path))
    ms.Model(step).train(2, dataset(), callbacks=[LossMonitor(1), TimeMonitor(), checkpoint], dataset_sink_mode=False)
    assert optimizer.step == 6
    assert capsys.readouterr().out.count("loss is") == 6
    for name, value in values(net).items():
        np.testing.assert_array_equal(value, values(loop_net)[name])
    saved = ms.load_checkpoint(str(tmp_path / "m-2_3.ckpt"))
    assert {"thor.step", "thor.layers.0.a.inverse", "moments.layers.0.weight"} <= set(saved)
    assert any(name.endswith("layers.0.weight") for name in saved)


def test_model_fit_evaluates_while_training():
    net = Mlp()
    _, step = make(net, jit=True, **SETTINGS)
    seen = []

    class Watch(ms.train.Callback):
        def on_eval_end(self, run_context):
            seen.append(run_context.original_args().metrics["mse"])

    trained = model(net, step)
    trained.fit(2, dataset(), dataset(), callbacks=[LossMonitor(1), Watch()], dataset_sink_mode=False)
    assert len(seen) == 2 and np.isfinite(seen).all()
    outputs = np.concatenate([net(x).asnumpy() - y.asnumpy() for x, y in dataset()])
    assert seen[-1] == pytest.approx((outputs**2).sum() / len(outputs), rel=1e-3)


def test_early_stopping_ends_a_fit():
    """No epoch is better than the first by a million, so that the second is the last."""
    net = Mlp()
    optimizer, step = make(net, jit=True, **SETTINGS)
    stopping = EarlyStopping(monitor="mse", patience=1, min_delta=1e6, mode="min")
    model(net, step).fit(5, dataset(), dataset(), callbacks=[stopping], dataset_sink_mode=False)
    assert optimizer.step == 2 * 3


def test_evaluation_between_steps_changes_nothing_in_training():
    """BatchNorm in particular: evaluation switches the mode, training switches it back."""
    quiet_net, net = Mixed(), Mixed()
    quiet, step = make(quiet_net)[1], make(net)[1]
    for seed in range(3):
        net.set_train(False)
        net(images()[0])
        step.set_train()
        assert step(*images(seed=seed)).asnumpy() == quiet(*images(seed=seed)).asnumpy()
    for name, value in values(net).items():
        np.testing.assert_array_equal(value, values(quiet_net)[name])


def test_being_part_of_another_graph_as_in_data_sinking_is_a_clear_error():
    """On a CPU MindSpore ignores dataset_sink_mode=True; elsewhere it compiles the step into a graph of its own."""

    class Sink(nn.Cell):
        def __init__(self, step):
            super().__init__()
            self.step = step

        def construct(self, x, y):
            return self.step(x, y)

    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(RuntimeError, match="cannot be part of another graph: use .*dataset_sink_mode=False"):
        Sink(make(Mlp())[1])(*batch())


def test_batches_may_come_from_a_devices_queue(monkeypatch):
    """``ms.data_sink`` calls the step on the host. A CPU has no queue, so that this one is made up."""
    net, other = Mlp(), Mlp()
    step, plain = make(net, interval=3)[1], make(other, interval=3)[1]
    queue = iter([batch(seed=seed) for seed in range(5)])
    with monkeypatch.context() as patched:
        patched.setattr("mindspore.context.get_context", {"device_target": "GPU"}.get)
        sinking = import_module("mindspore.train.data_sink")  # the package has the function by this name
        patched.setattr(sinking, "_init_sink_dataset", lambda *_: (lambda: next(queue), False))
        sunk = ms.data_sink(step, ds.NumpySlicesDataset(np.zeros(1)))
    for seed in range(5):
        assert float(sunk()) == float(plain(*batch(seed=seed)))
    assert_equal(net, other)


INNERS = {
    "first_order.Adam": lambda p: first_order.Adam(p, 0.01),
    "first_order.Momentum": lambda p: first_order.Momentum(p, 0.01, mode="nesterov"),
    "first_order.Adafactor": lambda p: first_order.Adafactor(p, 0.01),
    "first_order.Muon": lambda p: first_order.Muon(p, 0.01),
    "Adam": lambda p: nn.Adam(p, 0.01),
    "SGD": lambda p: nn.SGD(p, 0.01, momentum=0.9),
    "RMSProp": lambda p: nn.RMSProp(p, 0.01),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.01),
    "scheduled": lambda p: nn.Momentum(p, nn.ExponentialDecayLR(0.1, 0.5, 1, is_stair=True), 0.9),
}


@pytest.mark.parametrize("kind", INNERS)
def test_any_optimizer_may_move_the_weights(kind):
    """With identity caches THOR steps exactly as its inner optimizer does alone; with curvature it goes on."""
    ours, theirs = Mlp(), Mlp()
    optimizer, step = make(ours, lr=None, inner=INNERS[kind](ours.trainable_params()))
    never(optimizer)
    alone = INNERS[kind](theirs.trainable_params())
    for seed in range(3):
        x, y = batch(seed=seed)
        step(x, y)
        grads = gradients(theirs, squared_error, x, y)
        alone(tuple(Tensor(grads[p.name]) for p in theirs.trainable_params()))
    for name, value in values(theirs).items():
        np.testing.assert_allclose(values(ours)[name], value, rtol=1e-5, atol=1e-6)
    zero = Tensor(np.zeros(1, np.int32))
    optimizer.own_state.next_refresh.set_data(zero)
    assert np.isfinite(step(*batch()).asnumpy())
    assert [r.refreshes for r in optimizer.layers] == [1, 1]


def test_a_learning_rate_beside_inner_is_written_into_it():
    net = Mlp()
    optimizer, step = make(net, lr=lambda k: 0.5 / (k + 1), inner=nn.Adam(net.trainable_params(), 0.1), jit=True)
    for k in range(3):
        before = values(net)["layers.0.weight"]
        step(*batch())
        assert optimizer.inner.learning_rate.asnumpy() == np.float32(0.5 / (k + 1))
        if k == 0:  # Adam's first step is the learning rate's size
            moved = np.abs(values(net)["layers.0.weight"] - before)
            np.testing.assert_allclose(moved, 0.5, rtol=1e-2)


def groups(net):
    return [
        {"params": net.layers[0].trainable_params(), "lr": 0.2, "weight_decay": 0.01},
        {"params": net.layers[1].trainable_params()},
    ]


def test_parameter_groups_equal_momentums():
    ours, theirs = Mlp(), Mlp()
    optimizer, step = make(ours, lr=0.1, momentum=0.9, params=groups(ours))
    never(optimizer)
    alone = nn.Momentum(groups(theirs), 0.1, 0.9)
    order = list(alone.parameters)
    for seed in range(3):
        x, y = batch(seed=seed)
        step(x, y)
        grads = gradients(theirs, squared_error, x, y)
        alone(tuple(Tensor(grads[p.name]) for p in order))
    for name, value in values(theirs).items():
        np.testing.assert_allclose(values(ours)[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rates", [0.1, "groups"])
@pytest.mark.parametrize("clip", [1e-4, 1e9])
def test_clipping_limits_the_step_in_the_norm_of_the_curvature(clip, rates):
    """By scaling alone, to exactly the limit; a step below it is left as it is."""
    free_net, net = Mlp(), Mlp()
    (x, y), before = batch(), values(net)
    options = [{"lr": 0.1} | ({"params": groups(n)} if rates == "groups" else {}) for n in (free_net, net)]
    for group in (options[0].get("params", []) + options[1].get("params", []))[::2]:
        group.pop("weight_decay")
    make(free_net, **options[0])[1](x, y)
    optimizer, step = make(net, clip=clip, **options[1])
    step(x, y)

    curvature = [[np.linalg.inv(m) for m in optimizer.inverses(f"layers.{k}")] for k in range(2)]

    def size(moved):
        """The sum of d^T F d over layers, F = (G + g I) (x) (A + a I), d the step."""
        parts = [(matrix(moved, f"layers.{k}"), *curvature[k]) for k in range(2)]
        return sum(float(np.trace(d.T @ g @ d @ a)) for d, a, g in parts)

    free = {n: before[n] - values(free_net)[n] for n in before}
    moved = {n: before[n] - values(net)[n] for n in before}
    assert size(free) > 1e-3
    assert size(moved) == pytest.approx(min(clip, size(free)), rel=1e-2)
    share = np.sqrt(min(1.0, clip / size(free)))
    for name in before:
        np.testing.assert_allclose(moved[name], share * free[name], rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_gradient_is_clipped_before_it_is_preconditioned(accumulate):
    """G^-1 (f dW) A^-1 = f G^-1 dW A^-1, f = min(1, limit / |dW|): one factor a weight, the bias for itself."""
    limit, x, y = 0.5, *batch(8)
    free, clipped = Mlp(has_bias=False), Mlp(has_bias=False)
    start = values(free)
    norms = {name: np.linalg.norm(g) for name, g in gradients(free, squared_error, x, y).items()}
    assert max(norms.values()) > limit
    for net, options in ((free, {}), (clipped, {"clip_each": limit})):
        step = make(net, accumulate=accumulate, **options)[1]
        for part in range(accumulate):
            rows = slice(part * 8 // accumulate, (part + 1) * 8 // accumulate)
            step(x[rows], y[rows])
    for name, norm in norms.items():
        moved, wanted = values(clipped)[name] - start[name], values(free)[name] - start[name]
        np.testing.assert_allclose(moved, wanted * min(1, limit / norm), rtol=1e-3, atol=1e-6)


def test_an_infinite_gradient_is_not_clipped_to_a_number():
    """Clipping would make 0 times infinity of it: the step is skipped as any that is not finite."""
    net = Mlp()
    optimizer, step = make(net, clip_each=1.0)
    start, (x, y) = values(net), batch()
    step(x * 1e30, y * 1e30)
    assert optimizer.step == 0
    for name, value in values(net).items():
        np.testing.assert_array_equal(value, start[name])


def test_a_layer_outside_capture_is_not_clipped():
    net, (x, y) = Mlp(), batch()
    before, grads = values(net), gradients(net, squared_error, x, y)
    make(net, lr=0.1, clip=1e-8, skip=["layers.0"])[1](x, y)
    moved = before["layers.0.weight"] - values(net)["layers.0.weight"]
    np.testing.assert_allclose(moved, 0.1 * grads["layers.0.weight"], rtol=1e-3, atol=1e-6)


def test_decoupled_weight_decay_shrinks_apart_from_the_step():
    """w <- (1 - lr decay) w - lr direction: the direction is that of the undecayed run."""
    plain_net, net, decay = Mlp(), Mlp(), 0.5
    before, (x, y) = values(net), batch()
    make(plain_net, lr=0.1)[1](x, y)
    make(net, lr=0.1, weight_decay=decay, weight_decay_mode="decoupled")[1](x, y)
    for name, value in values(net).items():
        np.testing.assert_allclose(value, values(plain_net)[name] - 0.1 * decay * before[name], rtol=1e-5, atol=1e-6)


def test_coupled_weight_decay_is_added_to_the_direction():
    plain_net, net, decay = Mlp(), Mlp(), 0.5
    before, (x, y) = values(net), batch()
    make(plain_net, lr=0.1, momentum=0.9)[1](x, y)
    optimizer, step = make(net, lr=0.1, momentum=0.9, weight_decay=decay)
    step(x, y)
    for name, value in values(net).items():
        np.testing.assert_allclose(value, values(plain_net)[name] - 0.1 * decay * before[name], rtol=1e-5, atol=1e-6)
    moments = values(optimizer)["moments.layers.0.weight"]
    np.testing.assert_allclose(moments, (before["layers.0.weight"] - values(net)["layers.0.weight"]) / 0.1, rtol=1e-3)


def test_a_frozen_layer_never_moves():
    net = Mlp()
    for parameter in net.layers[0].get_parameters():
        parameter.requires_grad = False
    before = values(net)
    _, step = make(net, weight_decay=0.1)
    step(*batch())
    assert all((values(net)[n] == v).all() == n.startswith("layers.0") for n, v in before.items())


def test_loaded_batch_norm_statistics_reach_the_compiled_step():
    """Only the statistics are replaced, by the values they have: no weight moved, yet the step has to compile anew."""
    net = nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4), nn.Dense(4, 2))
    optimizer = thor.THOR(net, 0.01, 0.1, clip=1e-3)
    step = thor.TrainStep(net, nn.CrossEntropyLoss(), optimizer)
    x = Tensor(np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32))
    y = Tensor(np.zeros(8, np.int32))
    for _ in range(4):
        step(x, y)
    assert step.compilations == 1  # moving averages keep their storage while training
    mean = net[1].moving_mean
    mean.set_data(Tensor(np.full(4, 5, np.float32)))
    step(x, y)
    assert 4 < mean.asnumpy().min() <= mean.asnumpy().max() < 4.9  # 0.9 of what was loaded + 0.1 of the batch


def test_a_function_as_hyper_parameter_is_read_once_a_step_and_not_once_a_micro_batch():
    asked = []

    def rate():
        asked.append(0.1)
        return 0.1

    net = Mlp()
    inner = first_order.Momentum(net.trainable_params(), rate, 0.9)
    at_first = len(asked)
    _, step = make(net, lr=None, inner=inner, jit=True, accumulate=3)
    for _ in range(6):
        step(*batch())
    assert len(asked) - at_first == 2


class Alone(nn.Cell):
    """A network without inputs, on data of its own."""

    def __init__(self, constant):
        super().__init__()
        self.net, (x, self.y) = Mlp(), batch()
        self.x = x if constant else ms.Parameter(x, name="x", requires_grad=False)

    def construct(self):
        return squared_error(self.net(self.x), self.y)


@pytest.mark.parametrize("constant", [False, True])
def test_a_network_that_has_its_own_inputs_is_trained(constant):
    """An input that is a constant of the graph too, whose port the compiler could fold away."""
    optimizer, alone = make(Alone(constant), loss_fn=None, jit=True)
    _, step = make(Mlp(), jit=True)
    for _ in range(3):
        np.testing.assert_allclose(alone().asnumpy(), step(*batch()).asnumpy(), rtol=1e-6)
    assert {record.layer for record in optimizer.history} == {"net.layers.0", "net.layers.1"}
