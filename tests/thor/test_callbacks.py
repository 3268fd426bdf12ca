"""MindSpore's own callbacks, through ``ms.Model(step)``."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import (
    EarlyStopping,
    LearningRateScheduler,
    LossMonitor,
    Model,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TimeMonitor,
)

import first_order
import thor
from tests.support.networks import Mlp, batch, squared_error, values

OPTIMIZERS = {
    "THOR": lambda net: thor.THOR(net, 0.05, 0.1, interval=2, momentum=0.0),
    "THOR through Adam": lambda net: thor.THOR(net, 0.05, 0.1, inner=first_order.Adam(net.trainable_params(), 0.01)),
    "Momentum": lambda net: nn.Momentum(net.trainable_params(), 0.05, 0.0),
}
OPTIMIZER = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def data(count=24):
    x, y = batch(count)
    return NumpySlicesDataset((x.asnumpy(), y.asnumpy()), shuffle=False).batch(6)


def trained(make, callbacks, epochs=2, net=None):
    net = net or Mlp()
    optimizer = make(net)
    step = thor.TrainStep(net, squared_error, optimizer)
    Model(step).train(epochs, data(), callbacks, dataset_sink_mode=False)
    return net, optimizer, step


@OPTIMIZER
def test_a_scheduler_sets_the_rate_of_every_step(make):
    """With a rate of zero from the second step on, the weights are those after one step."""
    asked = []

    def rate(now, step):
        asked.append(now)
        return 0.0

    net, optimizer, _ = trained(make, [thor.TellOptimizer(), LearningRateScheduler(rate)])
    assert asked == [pytest.approx(0.05), *[0.0] * 7] and float(optimizer.learning_rate.asnumpy()) == 0.0
    once = Mlp()
    thor.TrainStep(once, squared_error, make(once))(*batch(24)[:0], *(each[:6] for each in batch(24)))
    for name, value in values(once).items():
        np.testing.assert_allclose(values(net)[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@OPTIMIZER
def test_a_plateau_lowers_the_rate(make):
    plateau = ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=1e9)
    _, optimizer, _ = trained(make, [thor.TellOptimizer(), plateau], epochs=3)
    assert float(optimizer.learning_rate.asnumpy()) == pytest.approx(0.05 * 0.5**2)


@OPTIMIZER
def test_callbacks_that_watch_stop_and_save(make, tmp_path, capsys):
    saved = ModelCheckpoint(prefix="tiny", directory=str(tmp_path))
    stop = EarlyStopping(monitor="loss", patience=1, min_delta=1e9)
    net, _, step = trained(make, [LossMonitor(), TimeMonitor(), saved, stop], epochs=9)
    shown = capsys.readouterr().out
    assert "epoch: 1 step: 4, loss is" in shown and "per step time" in shown
    assert "epoch: 9" not in shown, "it was to stop early"
    (last, *_) = sorted(tmp_path.glob("*.ckpt"), key=lambda path: path.stat().st_mtime, reverse=True)
    stored = ms.load_checkpoint(str(last))
    assert {p.name for p in step.get_parameters()} <= stored.keys()
    assert all(np.array_equal(stored[p.name].asnumpy(), p.asnumpy()) for p in net.get_parameters())


def test_a_rate_that_a_function_and_a_callback_both_set_is_refused():
    callbacks = [thor.TellOptimizer(), LearningRateScheduler(lambda rate, step: 0.5 * rate)]
    with pytest.raises(ValueError, match="learning_rate is a function of the step, 0.05 at the last one, .* 0.025"):
        trained(lambda net: thor.THOR(net, lambda step: 0.05, 0.1), callbacks)


@pytest.mark.parametrize("mode", ["GRAPH_MODE", "PYNATIVE_MODE"], indirect=True)
@pytest.mark.parametrize("wrap", ["Model", "TrainOneStepCell"])
def test_what_cannot_hold_a_thor_says_what_to_write(wrap, mode):
    net = Mlp()
    optimizer = OPTIMIZERS["THOR"](net)
    with pytest.raises(RuntimeError, match=r"(?s)thor.TrainStep\(net, loss_fn, optimizer\)"):
        if wrap == "Model":
            Model(net, nn.MSELoss(), optimizer).train(1, data(), dataset_sink_mode=False)
        else:
            nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)(*batch())


@pytest.mark.parametrize(
    "inner",
    [
        lambda weights: nn.AdaFactor(weights, learning_rate=None),
        lambda weights: nn.LARS(nn.Momentum(weights, 0.1, 0.9)),
    ],
    ids=["AdaFactor", "LARS"],
)
def test_a_rate_that_inner_would_not_read_is_refused(inner):
    net = Mlp()
    with pytest.raises(ValueError, match="learning_rate must be None with (AdaFactor|LARS) inside.*but got 0.05"):
        thor.THOR(net, 0.05, 0.1, inner=inner(net.trainable_params()))
