"""A step launched before the last one's finite flag is read: every number is as with a flag that is read at once."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import thor
from tests.support.networks import Mixed, Mlp, assert_equal, batch, images, squared_error, values
from thor.runtime import device

INTERVALS = {"interval": 4, "factor_interval": 2, "block_size": 3}
OPTIMIZERS = {
    "inverse": lambda net, **own: thor.THOR(net, 0.05, 0.1, **(INTERVALS | own)),
    "eigenbasis": lambda net, **own: thor.THOR(net, 0.01, **(INTERVALS | own)),
    "nn.Momentum": lambda net, **_: nn.Momentum(net.trainable_params(), 0.05, 0.9),
}
NETWORKS = {"dense": (Mlp, batch), "batch norm": (Mixed, images)}


def trainer(monkeypatch, *, ahead, name="inverse", kind="dense", seed=0, jit=True, accumulate=1, **own):
    """(network, optimizer, step, batches by seed), on a device that the host may go ahead of, or may not."""
    monkeypatch.setattr(device, "runs_ahead", lambda: ahead)
    network, make_batch = NETWORKS[kind]
    net = network(seed=seed)
    optimizer = OPTIMIZERS[name](net, **own)
    limit = {} if isinstance(optimizer, thor.THOR) else own
    step = thor.TrainStep(net, squared_error, optimizer, jit=jit, accumulate=accumulate, **limit)
    return net, optimizer, step, make_batch


def train(step, make_batch, steps, bad=()):
    """The losses; batches of the steps in ``bad`` have an infinite entry."""
    losses = []
    for at in steps:
        x, y = make_batch(seed=at)
        losses.append(step(x * np.inf if at in bad else x, y))
    return [loss.asnumpy().tobytes() for loss in losses]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_with_bad_batches_is_the_same_bit_for_bit(name, monkeypatch):
    """They come alone, in a row, and just before and at steps with curvature (every second step)."""
    found = []
    for ahead in (False, True):
        _, _, step, make_batch = trainer(monkeypatch, ahead=ahead, name=name, kind="batch norm")
        losses = train(step, make_batch, range(16), bad={1, 3, 4, 7, 8, 9, 13})
        found.append((losses, step))
    assert found[0][0] == found[1][0]
    assert_equal(found[0][1], found[1][1])
    assert all(np.isfinite(value).all() for value in values(found[1][1]).values())


def test_only_a_step_that_gathers_waits_for_the_one_before(monkeypatch):
    _, optimizer, step, make_batch = trainer(monkeypatch, ahead=True, interval=8, factor_interval=4)
    uncounted = []
    for at in range(9):
        step(*make_batch(seed=at))
        uncounted.append(optimizer.own_state.uncounted)
    assert uncounted == [False, True, True, True, False, True, True, True, False]


def test_whoever_asks_is_told_the_right_count(monkeypatch):
    _, optimizer, step, make_batch = trainer(monkeypatch, ahead=True, factor_interval=4)
    train(step, make_batch, range(3), bad={2})
    assert optimizer.own_state.uncounted
    assert optimizer.step == 2
    assert int(optimizer.skipped_steps.asnumpy()[0]) == 1
    train(step, make_batch, range(3, 4), bad={3})
    assert optimizer.phase == "plain"
    assert not optimizer.own_state.uncounted


@pytest.mark.parametrize(("name", "max_bad_steps"), [("inverse", 1), ("nn.Momentum", 2), ("eigenbasis", 3)])
def test_too_many_bad_steps_end_the_training_where_they_would(name, max_bad_steps, monkeypatch):
    found = []
    for ahead in (False, True):
        _, _, step, make_batch = trainer(monkeypatch, ahead=ahead, name=name, max_bad_steps=max_bad_steps)
        for at in range(20):
            x, y = make_batch(seed=at)
            try:
                step(x if at < 5 else x * np.nan, y)
            except FloatingPointError as error:
                found.append((at, str(error), step))
                break
    assert found[0][:2] == found[1][:2] and found[0][0] == 5 + max_bad_steps - 1
    assert_equal(found[0][2], found[1][2])


@pytest.mark.parametrize("name", ["inverse", "eigenbasis"])
def test_a_checkpoint_of_an_uncounted_bad_step_goes_on_bit_for_bit(name, monkeypatch, tmp_path):
    net, optimizer, step, make_batch = trainer(monkeypatch, ahead=True, name=name, kind="batch norm", factor_interval=4)
    train(step, make_batch, range(7), bad={5, 6})
    assert optimizer.own_state.uncounted
    ms.save_checkpoint(net, str(tmp_path / "net.ckpt"))
    ms.save_checkpoint(optimizer, str(tmp_path / "optimizer.ckpt"))
    other, fresh, fresh_step, _ = trainer(
        monkeypatch, ahead=True, name=name, kind="batch norm", seed=1, factor_interval=4
    )
    ms.load_param_into_net(other, ms.load_checkpoint(str(tmp_path / "net.ckpt")))
    ms.load_param_into_net(fresh, ms.load_checkpoint(str(tmp_path / "optimizer.ckpt")))
    assert fresh.step == 5
    assert train(step, make_batch, range(7, 13), bad={9}) == train(fresh_step, make_batch, range(7, 13), bad={9})
    assert_equal(step, fresh_step)


@pytest.mark.parametrize("bad", [set(), {2}])
def test_the_counts_of_any_optimizer_are_saved_with_the_last_step(bad, monkeypatch):
    """train.py saves them beside the optimizer, and asks for them alone."""
    _, _, step, make_batch = trainer(monkeypatch, ahead=True, name="nn.Momentum")
    train(step, make_batch, range(3), bad=bad)
    assert step.own_state.uncounted
    saved = {p.name: int(p.asnumpy()[0]) for p in step.own_state.get_parameters()}
    assert (saved["thor.step"], saved["thor.skipped_steps"]) == ((2, 1) if bad else (3, 0))


def test_what_is_loaded_is_not_counted_on(monkeypatch, tmp_path):
    """The uncounted step belongs to what was there before."""
    _, optimizer, step, make_batch = trainer(monkeypatch, ahead=True, factor_interval=4)
    train(step, make_batch, range(3))
    state = {each["name"]: ms.Parameter(each["data"], name=each["name"]) for each in optimizer.state()}
    train(step, make_batch, range(3, 4))
    optimizer.load(state)
    assert optimizer.step == 3
    train(step, make_batch, range(3, 8))
    assert optimizer.step == 8


def test_a_loop_of_ones_own_goes_on_from_an_uncounted_step(monkeypatch):
    net, optimizer, step, make_batch = trainer(monkeypatch, ahead=True, factor_interval=4)
    train(step, make_batch, range(3), bad={2})
    assert optimizer.own_state.uncounted
    x, y = make_batch(seed=3)

    def forward(x, y):
        return squared_error(net(x), y)

    _, gradients = thor.value_and_grad(forward, optimizer)(x * np.inf, y)
    optimizer(gradients)
    assert (optimizer.step, int(optimizer.skipped_steps.asnumpy()[0])) == (2, 2)
    assert int(optimizer.own_state.bad_steps.asnumpy()[0]) == 2


@pytest.mark.parametrize(
    "own",
    [
        {"jit": False},
        {"accumulate": 2},
        {"loss_scale": thor.DynamicLossScale(initial=4.0, window=3)},
        {"max_bad_steps": 1},
    ],
)
def test_where_the_host_has_to_know_the_flag_is_read_at_once(own, monkeypatch):
    _, optimizer, step, make_batch = trainer(monkeypatch, ahead=True, factor_interval=4, **own)
    for at in range(6):
        step(*make_batch(seed=at))
        assert not optimizer.own_state.uncounted


def test_a_rate_of_the_host_is_that_of_the_counted_step(monkeypatch):
    found = []
    for ahead in (False, True):
        monkeypatch.setattr(device, "runs_ahead", lambda ahead=ahead: ahead)
        net = Mlp(seed=0)
        optimizer = thor.THOR(net, lambda step: 0.05 / (1 + step), 0.1, interval=4, factor_interval=4)
        step = thor.TrainStep(net, squared_error, optimizer)
        found.append(train(step, batch, range(8), bad={2, 5}))
    assert found[0] == found[1]


def test_a_cpu_has_nothing_to_wait_for():
    net = Mlp(seed=0)
    optimizer = OPTIMIZERS["inverse"](net)
    step = thor.TrainStep(net, squared_error, optimizer)
    train(step, batch, range(3))
    assert not optimizer.own_state.uncounted
