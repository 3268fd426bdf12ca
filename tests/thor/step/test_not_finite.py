"""Never a NaN weight: steps that are not finite are skipped and explained, factors that are not definite are mended."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import thor
from tests.support.networks import Mixed, Mlp, batch, images, make, squared_error, values
from thor.runtime import device
from thor.step import moving_averages


@pytest.fixture(params=["squares", "sum"])
def either_look(request, monkeypatch):
    """What a CPU finds non-finite numbers by, and what accelerators do (finite_check.py)."""
    monkeypatch.setattr(device, "l2_loss_is_fast", lambda: request.param == "squares")


@pytest.mark.usefixtures("either_look")
def test_a_non_finite_step_is_skipped_whole_counted_and_reported(caplog):
    net = Mlp()
    optimizer, step = make(net, momentum=0.9)
    x, y = batch()
    step(x, y)
    before = values(net) | values(optimizer)
    with caplog.at_level("WARNING", logger="thor"):
        step(x * np.nan, y)
    changed = {n for n, v in (values(net) | values(optimizer)).items() if not np.array_equal(v, before[n])}
    assert changed == {"thor.bad_steps", "thor.skipped_steps"}
    assert (optimizer.step, int(optimizer.skipped_steps.asnumpy()[0])) == (1, 1)
    assert "step 1: loss or gradients are not finite, step skipped (1 in a row)" in caplog.text
    step(x, y)
    assert (optimizer.step, int(optimizer.own_state.bad_steps.asnumpy()[0])) == (2, 0)


@pytest.mark.usefixtures("either_look")
@pytest.mark.parametrize("options", [{"damping": 0.1}, {}, None])
def test_finite_gradients_whose_norm_overflows_are_not_clipped_to_nothing(options):
    """Their squares are infinite. Limited to a norm, they would be zero, and the step would count as a good one."""
    net, (x, y) = Mlp(), batch()
    if options is None:
        control = nn.Momentum(net.trainable_params(), 0.01, 0.9)
        step = thor.TrainStep(net, mean_product, control, clip_norm=1.0)
        control = step.control
    else:
        control = thor.THOR(net, 0.01, clip_each=1.0, interval=100, factor_interval=100, **options)
        step = thor.TrainStep(net, mean_product, control)
    step(x, y)  # the only one that gathers factors
    before = values(net)
    assert np.isfinite(float(step(x, Tensor(np.full(y.shape, 1e22, np.float32)))))
    assert int(control.own_state.skipped_steps.asnumpy()[0]) == 1
    assert all(np.array_equal(value, before[name]) for name, value in values(net).items())


def mean_product(output, target):
    return (output * target).mean()


class Spiky(nn.Cell):
    """A logarithm between two dense layers: not finite for a negative input."""

    def __init__(self):
        super().__init__()
        self.first, self.log, self.last = nn.Dense(5, 5), Log(), nn.Dense(5, 3)

    def construct(self, x):
        return self.last(self.log(self.first(x)))


class Log(nn.Cell):
    def construct(self, x):
        return ms.ops.log(x)


def bad(step, x, y, count):
    for _ in range(count):
        step(x, y)


def test_after_too_many_bad_steps_the_error_names_the_first_layer_that_went_bad():
    optimizer, step = make(Spiky(), max_bad_steps=3)
    x, y = batch()
    bad(step, x, y, 2)
    with pytest.raises(FloatingPointError) as caught:
        step(x, y)
    message = str(caught.value)
    assert "3 steps in a row were not finite" in message
    assert "layer log (Log) gives a non-finite output for finite inputs" in message


def test_the_error_names_a_bad_input_or_a_bad_weight():
    net = Mlp()
    x, y = batch()
    _, step = make(net, max_bad_steps=1)
    with pytest.raises(FloatingPointError, match="input 1 of the step is not finite"):
        step(x, y * np.inf)
    net.layers[1].bias.set_data(Tensor(np.full(3, np.nan, np.float32)))
    with pytest.raises(FloatingPointError, match="weight layers.1.bias is not finite"):
        step(x, y)


def test_the_error_names_a_bad_loss():
    def log_loss(output, target):
        return ms.ops.log(-1 - (output**2).mean())

    _, step = make(Mlp(), loss_fn=log_loss, max_bad_steps=1)
    with pytest.raises(FloatingPointError, match="every layer's output is finite, the loss is not"):
        step(*batch())


class Root(nn.Cell):
    def construct(self, x):
        return ms.ops.sqrt(x)


@pytest.mark.usefixtures("either_look")
def test_the_error_names_where_the_backward_pass_went_bad():
    """The root of 0 is 0, its slope infinite: the last layer's gradients are finite, those before it are not."""
    net = nn.SequentialCell(nn.Dense(5, 4), nn.Dense(4, 4), Root(), nn.Dense(4, 3))
    for weight in (net[1].weight, net[1].bias):
        weight.set_data(ms.ops.zeros_like(weight))
    _, step = make(net, max_bad_steps=1)
    with pytest.raises(FloatingPointError, match="the loss is finite; .* gradient of weight 1.bias is the first"):
        step(*batch())


def test_the_error_names_the_layer_at_fault_where_weights_come_in_groups():
    """Groups list all matrices before all biases, so the last of their order is a bias of an earlier layer."""
    net = nn.SequentialCell(nn.Dense(5, 4), nn.Dense(4, 4, has_bias=False), Root(), nn.Dense(4, 3))
    net[1].weight.set_data(ms.ops.zeros_like(net[1].weight))
    weights = net.trainable_params()
    groups = [{"params": [w for w in weights if w.ndim > 1]}, {"params": [w for w in weights if w.ndim == 1]}]
    _, step = make(net, max_bad_steps=1, params=groups)
    with pytest.raises(FloatingPointError, match="the loss is finite; .* gradient of weight 1.weight is the first"):
        step(*batch())


@pytest.mark.usefixtures("either_look")
def test_the_error_names_a_loss_scale_that_overflows():
    _, step = make(Mlp(), max_bad_steps=1, loss_scale=3e38)
    with pytest.raises(FloatingPointError, match="finite without the loss scale, .*: start with a lower one"):
        step(*batch())


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_of_an_accumulated_step_the_error_blames_no_batch_that_is_fine(scale):
    _, step = make(Mlp(), accumulate=2, max_bad_steps=1, loss_scale=scale)
    x, y = batch()
    step(x * np.nan, y)
    with pytest.raises(FloatingPointError, match="what this rank's last batch gives is finite.* other micro-batches"):
        step(x, y)


@pytest.mark.usefixtures("either_look")
@pytest.mark.parametrize("jit", [False, True])
def test_a_direction_that_overflows_its_weights_half_precision_moves_nothing(jit):
    """Float32 holds the direction of a gradient that stale inverses know nothing of; the weight's type does not."""
    net = Mlp()
    for parameter in net.trainable_params():
        parameter.set_dtype(ms.float16)
    optimizer, step = make(net, damping=1e-6, interval=100, max_bad_steps=1, jit=jit, loss_fn=in_float32)
    x, y = batch()
    x[:, 1:] = 0
    x, y = x.astype(ms.float16), y.astype(ms.float16)
    step(x * 0.001, y)
    before = values(net)
    with pytest.raises(FloatingPointError, match="the directions that stale inverses make of them are not"):
        step(x[:, [1, 0, 2, 3, 4]] * 8, y)
    assert optimizer.step == 1 and all(np.array_equal(value, before[name]) for name, value in values(net).items())


@pytest.mark.parametrize("optimizer_of", [
    lambda net: thor.THOR(net, 1e-3), lambda net: nn.Momentum(net.trainable_params(), 1e-3, 0.9),
])  # fmt: skip
def test_gradients_whose_sum_overflows_are_told_as_such(optimizer_of):
    """Without inverses none can be stale: it is the gradients, each finite, that are too large together."""
    net = Mlp()
    optimizer = optimizer_of(net)
    own = {} if isinstance(optimizer, thor.THOR) else {"max_bad_steps": 10}
    step = thor.TrainStep(net, enormous, optimizer, **own)
    with pytest.raises(FloatingPointError) as caught:
        for _ in range(10):
            step(*batch())
    assert "so large that a sum over them is not. Lower the learning rate, or check the data" in str(caught.value)


def enormous(output, target):
    return (output * target).mean() * 1e25


def in_float32(output, target):
    return squared_error(output.astype(ms.float32), target.astype(ms.float32))


def test_a_factor_that_is_not_positive_definite_gets_more_damping_and_is_reported(caplog):
    """A is spoilt by hand, as cancellation would: the step goes on with more damping and finite weights."""
    net = Mlp()
    optimizer, step = make(net, factor_decay=0.999, split="block")
    step(*batch())
    spoilt = optimizer.captured[0].a.blocks
    spoilt.set_data(Tensor(spoilt.asnumpy() - 3 * np.eye(6, dtype=np.float32)))
    with caplog.at_level("WARNING", logger="thor"):
        step(*batch())
    assert "blocks of layer layers.0 were not positive definite and got more damping" in caplog.text
    assert int(optimizer.escalations.asnumpy()[0]) == 1
    assert [r.refreshes for r in optimizer.layers] == [2, 2]
    assert all(np.isfinite(v).all() for v in values(net).values())


def test_a_factor_that_cannot_be_inverted_keeps_the_layers_last_good_inverse(caplog):
    net = Mlp()
    optimizer, step = make(net, factor_decay=0.999, split="block")
    step(*batch())
    good = optimizer.inverses("layers.0")
    spoilt = optimizer.captured[0].a.blocks
    spoilt.set_data(Tensor(spoilt.asnumpy() - 1e12 * np.eye(6, dtype=np.float32)))
    with caplog.at_level("WARNING", logger="thor"):
        step(*batch())
    assert "the factors of layer layers.0 cannot be inverted or decomposed; it keeps what it has" in caplog.text
    for ours, theirs in zip(optimizer.inverses("layers.0"), good, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [(r.refreshes, r.kept) for r in optimizer.layers] == [(1, 1), (2, 0)]
    last = [(r.layer, r.decision.value) for r in optimizer.history[-2:]]
    assert last == [("layers.0", "keep"), ("layers.1", "update")], "as what came of it, not as what was tried"
    assert all(np.isfinite(v).all() for v in values(net).values())


@pytest.mark.usefixtures("either_look")
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_that_is_not_finite_does_not_stay_in_moving_averages(jit, accumulate):
    """BatchNorm's kernel moves them in the forward pass, before anybody knows."""
    net = Mixed()
    _, step = make(net, jit=jit, accumulate=accumulate)
    x, y = images()
    for _ in range(2 * accumulate):
        step(x, y)
    for _ in range(accumulate):
        step(x * np.nan, y)
    found = values(net)
    assert all(np.isfinite(value).all() for value in found.values())
    for _ in range(accumulate):
        assert np.isfinite(float(step(x, y).asnumpy()))
    assert not np.array_equal(values(net)["norm.moving_mean"], found["norm.moving_mean"]), "and they move again"


@pytest.mark.parametrize("names", [("moving_mean", "moving_variance"), ("running_mean", "running_var")])
def test_averages_are_found_by_the_names_of_both_libraries(names):
    """mint.nn has names of its own; its kernel is not on a CPU."""

    class Norm(nn.Cell):
        def __init__(self):
            super().__init__()
            for name in names:
                setattr(self, name, ms.Parameter(Tensor(np.ones(3, np.float32)), name=name, requires_grad=False))

    averages = moving_averages.MovingAverages(nn.SequentialCell(nn.Dense(3, 3), Norm()))
    averages.before_step()
    for average in averages.averages:
        average.set_data(Tensor(np.array([2.0, np.nan, np.inf], np.float32)))
    averages.mend()
    assert [p.asnumpy().tolist() for p in averages.averages] == [[2.0, 1.0, 1.0]] * 2


def test_moving_averages_that_were_loaded_are_what_a_bad_batch_is_mended_by():
    net = Mixed()
    _, step = make(net)
    x, y = images()
    step(x, y)
    loaded = {"norm.moving_mean": ms.Parameter(Tensor(np.full(4, 7.0, np.float32)), name="norm.moving_mean")}
    ms.load_param_into_net(net, loaded)
    step(x * np.nan, y)
    np.testing.assert_array_equal(net.norm.moving_mean.asnumpy(), 7.0)


def test_what_a_bad_batch_is_mended_by_is_renewed(monkeypatch):
    """Late in a long training the averages of its first step would be a network of their own."""
    monkeypatch.setattr(moving_averages, "EVERY", 5)
    net = Mixed()
    _, step = make(net)
    x, y = images()
    before = []
    for _ in range(7):
        before.append(values(net)["norm.moving_mean"])
        step(x, y)
    step(x * np.nan, y)
    np.testing.assert_array_equal(net.norm.moving_mean.asnumpy(), before[5])
    assert not np.array_equal(before[5], before[0])


def test_the_error_after_too_many_bad_steps_leaves_them_finite_too():
    net = Mixed()
    _, step = make(net, max_bad_steps=1)
    x, y = images()
    with pytest.raises(FloatingPointError):
        step(x * np.nan, y)
    assert all(np.isfinite(value).all() for value in values(net).values())


def test_a_copy_that_is_due_in_the_middle_of_a_bad_step_is_not_of_what_is_bad(monkeypatch):
    """The second of three micro-batches is bad, and the third is when copies are made."""
    monkeypatch.setattr(moving_averages, "EVERY", 5)
    net = Mixed()
    _, step = make(net, accumulate=3)
    x, y = images()
    for bad in (False, False, False, True, False, False):  # copies before the first and the sixth
        step(x * np.nan if bad else x, y)
    assert all(np.isfinite(value).all() for value in values(net).values())
