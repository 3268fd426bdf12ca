import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import thor
from tests.support.networks import Mlp, batch, gradients, make, squared_error, values
from thor.settings import loss_scale


def scale_of(optimizer):
    return float(optimizer.scale.asnumpy()[0])


def test_numbers_rules_and_mindspores_scalers_are_read():
    assert loss_scale.read(128) == (128.0, None)
    assert loss_scale.read(ms.amp.StaticLossScaler(64)) == (64.0, None)
    rule = thor.DynamicLossScale(initial=8.0)
    assert loss_scale.read(rule) == (8.0, rule)
    initial, rule = loss_scale.read(ms.amp.DynamicLossScaler(scale_value=2**10, scale_factor=4, scale_window=50))
    assert (initial, rule.factor, rule.window) == (1024.0, 4.0, 50)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("jit", [False, True])
def test_an_overflowing_step_is_skipped_whole_and_the_scale_halves(jit, accumulate):
    """The gradients overflow only under the first scale: weights, moments, factors and step stay as they were."""
    net = Mlp()
    rule = thor.DynamicLossScale(initial=2.0**126, window=100)
    optimizer, step = make(net, momentum=0.9, loss_scale=rule, accumulate=accumulate, jit=jit)
    x, y = batch(scale=4.0)
    before = values(net) | values(optimizer)
    for _ in range(accumulate):
        step(x, y)
    after = values(net) | values(optimizer)
    changed = {name for name in after if not np.array_equal(after[name], before[name])}
    assert changed == {"thor.loss_scale", "thor.skipped_steps"}
    assert scale_of(optimizer) == 2.0**125
    assert (optimizer.step, optimizer.history) == (0, [])


def test_training_recovers_once_the_scale_has_fallen():
    net = Mlp()
    optimizer, step = make(net, loss_scale=thor.DynamicLossScale(initial=2.0**126, factor=2.0**40, window=100))
    for _ in range(5):
        loss = step(*batch())
    assert scale_of(optimizer) < 2.0**126
    assert optimizer.step + int(optimizer.skipped_steps.asnumpy()[0]) == 5
    assert optimizer.step >= 2
    assert np.isfinite(loss.asnumpy()) and all(np.isfinite(v).all() for v in values(net).values())


def test_the_scale_grows_after_a_window_of_finite_steps():
    optimizer, step = make(Mlp(), loss_scale=thor.DynamicLossScale(initial=4.0, window=3))
    scales = []
    for _ in range(7):
        step(*batch())
        scales.append(scale_of(optimizer))
    assert scales == [4, 4, 8, 8, 8, 16, 16]


def test_an_overflow_starts_the_window_again():
    optimizer, step = make(Mlp(), loss_scale=thor.DynamicLossScale(initial=4.0, window=3))
    x, y = batch()
    scales = []
    for factor in (1, 1, np.nan, 1, 1, 1):
        step(x * factor, y)
        scales.append(scale_of(optimizer))
    assert scales == [4, 4, 2, 2, 2, 4]


def test_at_its_minimum_an_overflow_counts_as_a_bad_step():
    optimizer, step = make(Mlp(), loss_scale=thor.DynamicLossScale(initial=2.0, minimum=1.0), max_bad_steps=2)
    x, y = batch()
    step(x * np.nan, y)
    step(x * np.nan, y)
    assert (scale_of(optimizer), int(optimizer.own_state.bad_steps.asnumpy()[0])) == (1.0, 1)
    with pytest.raises(FloatingPointError, match="input 0 of the step is not finite"):
        step(x * np.nan, y)


def test_a_changing_scale_leaves_the_steps_as_without_one():
    plain_net, net = Mlp(), Mlp()
    settings = {"momentum": 0.9, "factor_decay": 0.9, "block_size": 3}
    plain, ours = (
        make(plain_net, **settings),
        make(net, loss_scale=thor.DynamicLossScale(initial=8.0, window=1), **settings),
    )
    for seed in range(4):
        a, b = (step(*batch(seed=seed)).asnumpy() for _, step in (plain, ours))
        np.testing.assert_allclose(a, b, rtol=1e-6)
    for name, value in values(plain_net).items():
        np.testing.assert_array_equal(values(net)[name], value)  # powers of two: exact
    for ours_, theirs in zip(ours[0].factors("layers.0"), plain[0].factors("layers.0"), strict=True):
        np.testing.assert_allclose(ours_, theirs, rtol=1e-6)


def half(net, how):
    if how == "amp O2":
        return ms.amp.auto_mixed_precision(net, "O2", ms.float16)
    if how == "amp O1":
        return ms.amp.auto_mixed_precision(net, "O1", ms.float16)
    return net.to_float(ms.float16)


@pytest.mark.parametrize(
    ("how", "mode"), [("amp O1", "GRAPH_MODE"), ("amp O2", "PYNATIVE_MODE"), ("to_float", "GRAPH_MODE")]
)
def test_half_precision_trains_with_float32_curvature(how, mode, tmp_path, monkeypatch):
    ms.set_context(mode=getattr(ms, mode))
    monkeypatch.chdir(tmp_path)  # amp O1 writes the rewritten network into the current folder
    net = half(Mlp(), how)

    def loss_fn(output, target):
        return squared_error(output.astype(ms.float32), target)

    optimizer, step = make(net, jit=True, loss_fn=loss_fn, loss_scale=128.0, block_size=3)
    assert len(optimizer.layers) == 2
    losses = [float(step(*batch()).asnumpy()) for _ in range(4)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    assert optimizer.step == 4
    assert {p.dtype for p in optimizer.own_state.curvature} == {ms.float32}


def test_half_precision_factors_agree_with_float32_to_half_precision():
    full_net, net = Mlp(), Mlp()
    full, full_step = make(full_net, lr=0.0)
    net.to_float(ms.float16)

    def loss_fn(output, target):
        return squared_error(output.astype(ms.float32), target)

    optimizer, step = make(net, lr=0.0, loss_fn=loss_fn, loss_scale=128.0)
    full_step(*batch())
    step(*batch())
    for name in ("layers.0", "layers.1"):
        for ours, theirs in zip(optimizer.factors(name), full.factors(name), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=5e-3 * np.abs(theirs).max())  # float16: 1e-3 an entry
    assert isinstance(net.layers[0], nn.Dense)


@pytest.mark.parametrize("interval", [1, 100])
def test_sums_of_micro_batches_do_not_overflow_where_their_mean_does_not(interval):
    """Of weights in float16; each gradient is half of what float16 can hold, four of them twice as much."""
    x, y = batch()
    largest = max(np.abs(g).max() for g in gradients(Mlp(), squared_error, x, y).values())
    scale = 2.0 ** np.floor(np.log2(40000 / largest))

    def loss_fn(output, target):
        return squared_error(output.astype(ms.float32), target)

    net = Mlp().to_float(ms.float16)
    for weight in net.trainable_params():
        weight.set_dtype(ms.float16)
    settings = {"loss_fn": loss_fn, "loss_scale": float(scale), "interval": interval, "jit": True}
    optimizer, step = make(net, accumulate=4, **settings)
    start = values(net)
    for _ in range(8):
        step(x, y)
    assert (optimizer.step, int(optimizer.skipped_steps.asnumpy()[0])) == (2, 0)
    assert all(not np.array_equal(value, start[name]) for name, value in values(net).items())


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("scale", [1e5, 2.0**25])
def test_half_precision_weights_move_alike_under_any_scale(scale, accumulate):
    """1 / scale is 0 in float16 from 2^25 on, and rounded where it is no power of two."""

    def moved(scale):
        net = Mlp().to_float(ms.float16)
        for parameter in net.trainable_params():
            parameter.set_dtype(ms.float16)
        before = values(net)

        def loss_fn(found, y):
            return squared_error(found.astype(ms.float32), y) * 1e-6

        _, step = make(net, lr=1e3, loss_scale=scale, loss_fn=loss_fn, accumulate=accumulate, interval=10)
        for _ in range(accumulate):
            step(*batch())
        return np.concatenate([(values(net)[name] - value).ravel() for name, value in before.items()])

    expected = moved(1024.0)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(moved(scale), expected, rtol=2e-2, atol=2e-3)
