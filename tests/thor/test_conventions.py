"""How a batch is given and what a step returns, for every optimizer, compiled and not."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import first_order
import thor
from tests.support.networks import Mlp, batch, squared_error, values

OPTIMIZERS = {
    "THOR": lambda net: thor.THOR(net, 0.05, 0.1, interval=2, momentum=0.0),
    "Momentum": lambda net: nn.Momentum(net.trainable_params(), 0.05, 0.9),
    "Adam": lambda net: first_order.Adam(net.trainable_params(), 0.01),
    "Muon": lambda net: first_order.Muon(net.trainable_params(), 0.01),
    "SOAP": lambda net: first_order.SOAP(net.trainable_params(), 0.01, max_precond_dim=3, precondition_frequency=2),
    "AdamWeightDecay": lambda net: nn.AdamWeightDecay(net.trainable_params(), 0.01),
}
OPTIMIZER = pytest.mark.parametrize("make", [OPTIMIZERS["THOR"], OPTIMIZERS["Momentum"]], ids=["THOR", "Momentum"])
#: MindSpore's mode, and whether the step is compiled; uncompiled it is the same in both modes.
WAYS = pytest.mark.parametrize(
    ("mode", "jit"), [("GRAPH_MODE", True), ("PYNATIVE_MODE", True), ("PYNATIVE_MODE", False)], indirect=["mode"]
)


class Named(nn.Cell):
    """A network that takes inputs by name and returns (loss, output, a number)."""

    def __init__(self, seed=0):
        super().__init__()
        self.net = Mlp(seed=seed)

    def construct(self, features, targets, weight=None):
        output = self.net(features)
        loss = squared_error(output, targets)
        if weight is not None:
            loss = loss * weight
        return loss, output, loss * 2.0


def by_two(output, first, second):
    return squared_error(output, first) + squared_error(output, second)


def per_example(output, target):
    return ((output - target) ** 2).sum(-1)


def losses(step, count, *inputs, **named):
    return [float(step(*inputs, **named)) for _ in range(count)]


@OPTIMIZER
@pytest.mark.parametrize(("jit", "accumulate"), [(True, 2), (False, 1)])
def test_further_outputs_follow_the_loss(make, jit, accumulate):
    x, y = batch()
    net = Named()
    step = thor.TrainStep(net, None, make(net), has_aux=True, accumulate=accumulate, jit=jit)
    for _ in range(2 * accumulate):
        wanted = [each.asnumpy() for each in net(x, y)]
        loss, (output, double) = step(features=x, targets=y)
        np.testing.assert_allclose(output.asnumpy(), wanted[1], rtol=1e-5)
        np.testing.assert_allclose(float(double), wanted[2], rtol=1e-5)
        np.testing.assert_allclose(float(loss), wanted[0], rtol=1e-5)


@OPTIMIZER
def test_arrays_names_and_several_labels_are_taken(make):
    x, y = batch()

    def first_losses(loss_fn, *inputs, **named):
        net = Mlp()
        return losses(thor.TrainStep(net, loss_fn, make(net), jit=False), 3, *inputs, **named)

    reference = first_losses(squared_error, x, y)
    assert first_losses(squared_error, x.asnumpy(), y.asnumpy()) == reference
    assert first_losses(squared_error, x=x, target=y) == first_losses(squared_error, y, x=x) == reference
    assert first_losses(by_two, x, y, y)[0] == pytest.approx(2 * reference[0], rel=1e-5)


@OPTIMIZER
@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_what_cannot_be_a_batch_or_a_loss_is_said_in_our_words(make, jit):
    x, y = batch()

    def refused(words, *inputs, loss_fn=squared_error, net=None, **named):
        net = net or Mlp()
        step = thor.TrainStep(net, loss_fn, make(net), jit=jit)
        with pytest.raises((TypeError, ValueError), match=words):
            step(*inputs, **named)

    refused(r"one number, but loss_fn returned a Tensor of shape \(6,\).*reduction='mean'", x, y, loss_fn=per_example)
    refused(
        "Named must return the loss alone, but returned 3 values: give has_aux=True", x, y, loss_fn=None, net=Named()
    )
    refused(r"the batch is empty: input 0 has shape \(0, 5\)", x.asnumpy()[:0], y.asnumpy()[:0])
    refused("an input for the network and 1 for loss_fn, but got 1", x)
    refused("Mlp.*'labels'|network's .x. and 1 for the loss, but got inputs, labels", inputs=x, labels=y)
    refused("neither Mlp nor loss_fn has an input 'labels'; they have x, target", x=x, labels=y)


def test_has_aux_needs_further_outputs():
    net = Mlp()
    step = thor.TrainStep(net, squared_error, nn.Momentum(net.trainable_params(), 0.1, 0.9), has_aux=True, jit=False)
    with pytest.raises(TypeError, match=r"has_aux=True: loss_fn must return \(loss, ...\), but returned a Tensor"):
        step(*batch())


def test_optimizers_that_cannot_be_are_refused_by_name():
    net = Mlp()
    with pytest.raises(TypeError, match="must be a thor.THOR or an nn.Optimizer, but got list"):
        thor.TrainStep(net, squared_error, net.trainable_params())
    with pytest.raises(TypeError, match="AdamW: optimizers of mindspore.mint and mindspore.experimental are none"):
        thor.TrainStep(net, squared_error, ms.mint.optim.AdamW(net.trainable_params()))
    with pytest.raises(ValueError, match="Momentum must have a loss_scale of 1.*loss_scale=8.0"):
        thor.TrainStep(net, squared_error, nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scale=8.0))
    with pytest.raises(ValueError, match="loss_scale is THOR's own setting"):
        thor.TrainStep(net, squared_error, OPTIMIZERS["THOR"](net), loss_scale=8.0)


@pytest.mark.parametrize("make", [OPTIMIZERS["Momentum"], OPTIMIZERS["Adam"]], ids=["Momentum", "Adam"])
@pytest.mark.parametrize("scale", [64.0, thor.DynamicLossScale(initial=64.0, window=2)], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_scale_of_a_power_of_two_changes_nothing(make, scale, accumulate):
    x, y = batch()
    plain = thor.TrainStep(one := Mlp(), squared_error, make(one), accumulate=accumulate)
    scaled = thor.TrainStep(two := Mlp(), squared_error, make(two), accumulate=accumulate, loss_scale=scale)
    assert losses(plain, 6, x, y) == losses(scaled, 6, x, y)
    assert all(np.array_equal(v, values(two)[n]) for n, v in values(one).items())


@OPTIMIZER
def test_a_step_that_is_not_finite_moves_nothing_and_too_many_end(make):
    net = Mlp()
    limit = {} if make is OPTIMIZERS["THOR"] else {"max_bad_steps": 3}
    step = thor.TrainStep(net, squared_error, make(net), **limit)
    x, y = batch()
    step(x, y)
    before, bad = values(net), Tensor(np.full(x.shape, np.inf, np.float32))
    step(bad, y)
    assert all(np.array_equal(v, values(net)[n]) for n, v in before.items())
    with pytest.raises(FloatingPointError, match="input 0 of the step is not finite"):
        for _ in range(10):
            step(bad, y)
    assert all(np.array_equal(v, values(net)[n]) for n, v in before.items())
    assert np.isfinite(float(step(x, y)))


class Scaled(nn.Cell):
    """A loss with a Parameter of its own."""

    def __init__(self):
        super().__init__()
        self.factor = ms.Parameter(Tensor(1.0, ms.float32), name="factor", requires_grad=False)

    def construct(self, output, target):
        return squared_error(output, target) * self.factor


@OPTIMIZER
@WAYS
def test_new_values_of_the_losses_parameters_take_effect_without_compiling(make, jit, mode):
    net, loss_fn = Mlp(), Scaled()
    step = thor.TrainStep(net, loss_fn, make(net), jit=jit)
    x, y = batch()
    losses(step, 4, x, y)
    graphs = step.graphs
    loss_fn.factor.set_data(Tensor(10.0, ms.float32))
    wanted = 10.0 * float(squared_error(net(x), y))
    assert float(step(x, y)) == pytest.approx(wanted, rel=1e-5) and step.graphs == graphs
    assert loss_fn.factor.name in {p.name for p in step.get_parameters()}


@OPTIMIZER
def test_a_swap_of_weights_at_every_epoch_compiles_nothing(make):
    net = Mlp()
    step = thor.TrainStep(net, squared_error, make(net))
    x, y = batch()
    losses(step, 4, x, y)
    graphs = step.graphs
    for _ in range(3):
        for weight in net.trainable_params():
            weight.set_data(Tensor(weight.asnumpy() * 0.5))
        wanted = float(squared_error(net(x), y))
        assert float(step(x, y)) == pytest.approx(wanted, rel=1e-5)
        step(x, y)
    assert step.graphs == graphs


@WAYS
def test_a_layer_that_is_frozen_at_first_is_captured_once_it_is_unfrozen(jit, mode):
    net = Mlp()
    first = net.layers[0]
    first.weight.requires_grad = first.bias.requires_grad = False
    optimizer = thor.THOR(net, 0.05, 0.1, interval=2, params=list(net.get_parameters()))
    step = thor.TrainStep(net, squared_error, optimizer, jit=jit)
    x, y = batch()
    before = values(net)
    losses(step, 5, x, y)
    assert [layer.refreshes for layer in optimizer.layers] == [0, 3]
    assert all(np.array_equal(values(net)[p.name], before[p.name]) for p in first.get_parameters())
    first.weight.requires_grad = first.bias.requires_grad = True
    losses(step, 4, x, y)
    assert optimizer.layers[0].refreshes == 2 and not optimizer.left_out
    assert not np.array_equal(first.weight.asnumpy(), before[first.weight.name])


def test_a_network_whose_layers_are_never_called_is_refused_by_their_names():
    class Elsewhere(nn.Cell):
        def __init__(self):
            super().__init__()
            self.unused, self.weight = Mlp(), ms.Parameter(Tensor(np.ones((5, 3), np.float32)), name="weight")

        def construct(self, x):
            return ops.matmul(x, self.weight)

    net = Elsewhere()
    step = thor.TrainStep(net, squared_error, OPTIMIZERS["THOR"](net))
    with pytest.raises(RuntimeError, match=r"none of the captured layers \(unused.layers.0, unused.layers.1\)"):
        step(*batch())


@OPTIMIZER
def test_a_weight_that_is_unfrozen_for_an_optimizer_that_lacks_it_is_named(make):
    net = Mlp()
    net.layers[0].weight.requires_grad = False
    step = thor.TrainStep(net, squared_error, make(net))
    step(*batch())
    net.layers[0].weight.requires_grad = True
    with pytest.raises(RuntimeError, match="weight layers.0.weight has requires_grad=True now.*make a new optimizer"):
        step(*batch())


def test_a_teacher_whose_weights_have_the_students_names():
    student, teacher = Mlp(seed=0), Mlp(seed=1)

    def distance(output, x):
        return squared_error(output, teacher(x))

    x, _ = batch()
    before = values(teacher)
    step = thor.TrainStep(student, distance, OPTIMIZERS["THOR"](student))
    found = losses(step, 6, x, x)
    assert found[-1] < found[0] and all(np.array_equal(v, values(teacher)[n]) for n, v in before.items())
    assert [p.name for p in teacher.get_parameters()] == [p.name for p in student.get_parameters()]
    for parameter, new in zip(teacher.get_parameters(), student.get_parameters(), strict=True):
        parameter.set_data(Tensor(new.asnumpy()))
    assert float(step(x, x)) == pytest.approx(0.0, abs=1e-6)  # the teacher's new weights are the student's


def test_inputs_may_have_other_shapes_from_step_to_step():
    net = Mlp()
    step = thor.TrainStep(net, squared_error, OPTIMIZERS["THOR"](net))
    for count in (6, 4, 6, 4):
        x, y = batch(count)
        wanted = float(squared_error(net(x), y))
        assert float(step(x, y)) == pytest.approx(wanted, rel=1e-4)


def in_two_groups(params):
    return [{"params": params[::2], "lr": [0.2, 0.1]}, {"params": params[1::2], "lr": [0.1, 0.05]}]


LISTS = {
    "THOR": lambda net: thor.THOR(net, [0.1, 0.05], 0.1),
    "THOR, groups": lambda net: thor.THOR(net, 0.1, 0.1, params=in_two_groups(net.trainable_params())),
    "nn.Optimizer": lambda net: nn.Momentum(net.trainable_params(), [0.1, 0.05], 0.9),
    "nn.Optimizer, groups": lambda net: nn.Momentum(in_two_groups(net.trainable_params()), 0.1, 0.9),
}


@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS)
def test_a_list_of_rates_that_is_too_short_is_told_by_its_length(make):
    net = Mlp()
    optimizer = make(net)
    step = thor.TrainStep(net, squared_error, optimizer)
    losses(step, 2, *batch())
    with pytest.raises(ValueError, match="learning_rate is a list of 2 rates, one a step, and step 2 has none"):
        step(*batch())
