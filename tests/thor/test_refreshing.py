"""Eigenbases that are found beside plain steps, and adopted some steps after their candidate refresh."""

import threading

import mindspore as ms
import numpy as np
import pytest

import thor
from tests.support.networks import Mixed, Mlp, assert_equal, batch, images, squared_error
from thor.curvature import eigenbasis
from thor.curvature.trace_rule import Decision
from thor.runtime import device

EVERY = {"interval": 8, "factor_interval": 4, "block_size": 3, "refresh": thor.TraceRule(update=0.2, stop=0.05)}


@pytest.fixture
def accelerator(monkeypatch):
    """A device beside which the host is idle."""
    for decision in ("runs_ahead", "leaves_host_idle"):
        monkeypatch.setattr(device, decision, lambda: True)


def trainer(network=Mlp, seed=0, accumulate=1, jit=False, **own):
    net = network(seed=seed)
    optimizer = thor.THOR(net, 0.01, **(EVERY | own))
    return net, optimizer, thor.TrainStep(net, squared_error, optimizer, accumulate=accumulate, jit=jit)


def train(step, steps, bad=(), make_batch=batch):
    """The losses; batches of the steps in ``bad`` have an infinite entry."""
    losses = []
    for at in steps:
        x, y = make_batch(seed=at)
        losses.append(step(x * np.inf if at in bad else x, y).asnumpy().tobytes())
    return losses


def bases(optimizer):
    return [matrix for layer in optimizer.layers for matrix in optimizer.bases(layer.name)]


def changes(optimizer, step, steps, **how):
    """The steps that changed a basis, and the bases after the last of them."""
    found, before = [], bases(optimizer)
    for at in steps:
        train(step, [at], **how)
        now = bases(optimizer)
        if any((one != two).any() for one, two in zip(before, now, strict=True)):
            found.append(at)
        before = now
    return found


def test_bases_are_adopted_just_before_the_next_gathering(accelerator):
    """Those of step 0 before step 4, those of step 8 before step 12; they are the eigenvectors of their estimates."""
    _, optimizer, step = trainer(refresh=thor.TraceRule.thor_nt())
    assert changes(optimizer, step, range(8)) == [4]
    train(step, [8])
    estimates = [factor.blocks.asnumpy().copy() for layer in optimizer.captured for factor in (layer.a, layer.g)]
    assert changes(optimizer, step, range(9, 15)) == [12]
    factors = [factor for layer in optimizer.captured for factor in (layer.a, layer.g)]
    for factor, blocks in zip(factors, estimates, strict=True):
        size, count = factor.cut.size, factor.copies * factor.cut.count
        rows = np.full(count, size)
        rows[-1] = factor.cut.dim - (count - 1) * size
        expected = eigenbasis.bases_of(blocks.reshape(-1, size, size), rows)
        np.testing.assert_array_equal(factor.basis.asnumpy().reshape(expected.shape), expected)


def test_the_lag_has_an_upper_limit(accelerator):
    _, optimizer, step = trainer(interval=40, factor_interval=30)
    assert changes(optimizer, step, range(20)) == [10]


def test_nothing_lags_where_every_step_gathers(accelerator, monkeypatch):
    """So it is with a growing interval at first."""
    found = []
    for idle in (True, False):
        monkeypatch.setattr(device, "leaves_host_idle", lambda idle=idle: idle)
        _, _, step = trainer(interval=thor.GrowingInterval(1, 19, 1.3), factor_interval=None)
        found.append((train(step, range(12)), step))
    assert found[0][0] == found[1][0]
    assert_equal(found[0][1], found[1][1])


def test_plain_steps_go_on_while_bases_are_computed(accelerator, monkeypatch):
    """Three plain steps are done while the thread waits, and the fourth step waits for it."""
    done, thread, own = threading.Event(), [], eigenbasis.bases_of

    def waiting(*args):
        thread.append(threading.current_thread())
        assert done.wait(60)
        return own(*args)

    monkeypatch.setattr(eigenbasis, "bases_of", waiting)
    _, optimizer, step = trainer()
    train(step, range(4))
    assert optimizer.step == 4 and optimizer.own_state.candidate_step == 0 and not optimizer.history
    done.set()
    train(step, range(4, 6))
    assert threading.main_thread() not in thread and optimizer.own_state.candidate_step == -1
    assert {record.step for record in optimizer.history} == {0}


@pytest.mark.parametrize(
    ("elsewhere", "kept", "until"),
    [(False, (12, 16), 24), (True, (3,), 9)],  # the last bad batch is the tenth: step 8 has the twelfth
)
def test_a_checkpoint_of_any_step_goes_on_bit_for_bit(elsewhere, kept, until, accelerator, monkeypatch, tmp_path):
    """Also one from between a candidate and its adoption, and on a device where later bases are found at once."""
    how = {"make_batch": images, "bad": {2, 9, 10}}
    net, optimizer, step = trainer(Mixed, jit=True)
    for at in range(until):
        if at in kept:
            ms.save_checkpoint(net, str(tmp_path / f"net{at}.ckpt"))
            ms.save_checkpoint(optimizer, str(tmp_path / f"optimizer{at}.ckpt"))
        train(step, [at], **how)
    if elsewhere:
        monkeypatch.setattr(device, "leaves_host_idle", lambda: False)
    for at in kept:
        other, fresh, fresh_step = trainer(Mixed, seed=1, jit=True)
        ms.load_param_into_net(other, ms.load_checkpoint(str(tmp_path / f"net{at}.ckpt")))
        fresh.load(ms.load_checkpoint(str(tmp_path / f"optimizer{at}.ckpt")))
        train(fresh_step, range(at, until), **how)
        assert_equal(step, fresh_step)


def test_what_is_computed_is_forgotten_when_another_state_is_loaded(accelerator):
    _, optimizer, step = trainer(jit=True)
    train(step, range(3))
    saved = {each["name"]: ms.Parameter(each["data"], name=each["name"]) for each in optimizer.state()}
    _, fresh, fresh_step = trainer(seed=1, jit=True)
    train(fresh_step, range(20, 22))
    fresh.load(saved)
    train(fresh_step, range(3, 5))
    train(step, range(3, 5))
    for mine, theirs in zip(bases(optimizer), bases(fresh), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_layer_whose_factors_are_not_finite_keeps_its_basis(accelerator, caplog):
    _, optimizer, step = trainer(refresh=thor.TraceRule.thor_nt())
    train(step, range(8))
    broken, whole = optimizer.captured[0], optimizer.captured[1]
    before = bases(optimizer)
    broken.a.blocks.set_data(ms.Tensor(np.full(broken.a.blocks.shape, np.nan, np.float32)))
    train(step, range(8, 13))
    last = {record.layer: record.decision for record in optimizer.history if record.step == 8}
    assert last == {broken.name: Decision.KEEP, whole.name: Decision.UPDATE}
    assert "step 8: the factors of layer" in caplog.text
    np.testing.assert_array_equal(before[0], bases(optimizer)[0])


def test_accumulated_steps_adopt_once(accelerator):
    _, optimizer, step = trainer(accumulate=2, refresh=thor.TraceRule.thor_nt())
    assert changes(optimizer, step, range(16)) == [8]


def test_a_loop_of_ones_own_adopts_too(accelerator):
    net, optimizer, _ = trainer()

    def forward(x, y):
        return squared_error(net(x), y)

    grad_fn = thor.value_and_grad(forward, optimizer)
    before = bases(optimizer)
    for at in range(5):
        _, gradients = grad_fn(*batch(seed=at))
        assert all((one == two).all() for one, two in zip(before, bases(optimizer), strict=True)) == (at < 4)
        optimizer(gradients)


def test_two_functions_that_take_turns_are_one(accelerator, monkeypatch):
    """Each has a refreshing, and groups of layers, of its own; what one adopts the other steps by."""
    monkeypatch.setattr(device, "spares_kernels", lambda: True)

    def trained(count):
        net, optimizer, _ = trainer(interval=6, factor_interval=3, refresh=thor.TraceRule.thor_nt())

        def forward(x, y):
            return squared_error(net(x), y)

        functions = [thor.value_and_grad(forward, optimizer) for _ in range(count)]
        losses = []
        for at in range(16):
            loss, gradients = functions[at // 2 % count](*batch(seed=at))
            optimizer(gradients)
            losses.append(loss.asnumpy().tobytes())
        return losses, bases(optimizer)

    (one, of_one), (two, of_two) = trained(1), trained(2)
    assert one == two
    assert all((mine == yours).all() for mine, yours in zip(of_one, of_two, strict=True))


def test_what_is_to_be_adopted_while_every_layer_is_frozen_is_dropped(accelerator):
    net, optimizer, step = trainer(refresh=thor.TraceRule.thor_nt())
    train(step, range(2))
    optimizer.load({each["name"]: ms.Parameter(each["data"]) for each in optimizer.state()})
    for weight in net.trainable_params():
        weight.requires_grad = False
    before = bases(optimizer)
    train(step, range(2, 6))
    assert all((mine == yours).all() for mine, yours in zip(before, bases(optimizer), strict=True))


def test_a_cpu_refreshes_at_once():
    _, optimizer, step = trainer()
    assert changes(optimizer, step, range(4)) == [0]


def test_inverses_are_made_at_once(accelerator):
    net = Mlp()
    optimizer = thor.THOR(net, 0.05, 0.1, interval=8, factor_interval=4)
    step = thor.TrainStep(net, squared_error, optimizer)
    train(step, [0])
    assert {record.step for record in optimizer.history} == {0}
