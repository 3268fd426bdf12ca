"""Loops of the user's own: ``loss, gradients = grad_fn(...)``, then ``optimizer(gradients)``."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import first_order
import thor
from tests.support.networks import Mlp, batch, squared_error, values

ALWAYS = thor.TraceRule.thor_nt()


def loop(net, **options):
    """(optimizer, grad_fn) of the mean squared error."""
    optimizer = thor.THOR(net, 0.05, 0.1, **({"interval": 3} | options))

    def forward(x, y):
        return squared_error(net(x), y)

    return optimizer, thor.value_and_grad(forward, optimizer, jit=False)


@pytest.mark.parametrize(
    ("mode", "jit"), [("GRAPH_MODE", True), ("PYNATIVE_MODE", True), ("PYNATIVE_MODE", False)], indirect=["mode"]
)
def test_a_loop_of_ones_own_equals_the_step_bit_for_bit(mode, jit):
    x, y = batch()
    net, other = Mlp(), Mlp()
    step = thor.TrainStep(net, squared_error, thor.THOR(net, 0.05, 0.1, interval=3, clip=0.01, refresh=ALWAYS), jit=jit)
    optimizer = thor.THOR(other, 0.05, 0.1, interval=3, clip=0.01, refresh=ALWAYS)

    def forward(x, y):
        return squared_error(other(x), y)

    grad_fn = thor.value_and_grad(forward, optimizer, jit=jit)
    for _ in range(7):
        loss, gradients = grad_fn(x, y=y)
        optimizer(gradients)
        assert float(loss) == float(step(x, y))
    assert all(np.array_equal(value, values(other)[name]) for name, value in values(net).items())
    assert [r.refreshes for r in optimizer.layers] == [r.refreshes for r in step.optimizer.layers] == [3, 3]


def test_gradients_may_be_changed_in_between():
    """Twice the gradient with half the rate is the same step, for an optimizer without momentum."""
    x, y = batch()
    net, other = Mlp(), Mlp()
    (one, first), (two, second) = loop(net, momentum=0.0), loop(other, momentum=0.0)
    two.inner.learning_rate.set_data(Tensor(0.025, ms.float32))
    for _ in range(5):
        _, gradients = first(x, y)
        one(gradients)
        _, gradients = second(x, y)
        two([2.0 * gradient for gradient in gradients])
    for name, value in values(net).items():
        np.testing.assert_allclose(values(other)[name], value, rtol=1e-5)


def test_several_losses_of_one_network_with_one_optimizer():
    x, y = batch()
    net = Mlp()
    optimizer = thor.THOR(net, 0.05, 0.1, interval=2)

    def both(x, y):
        output = net(x)
        fit = squared_error(output, y)
        size = (output**2).mean()
        return fit + 0.1 * size, fit, size

    grad_fn = thor.value_and_grad(both, optimizer, has_aux=True)
    found = []
    for _ in range(6):
        (loss, (fit, size)), gradients = grad_fn(x, y)
        optimizer(gradients)
        assert float(loss) == pytest.approx(float(fit) + 0.1 * float(size), rel=1e-5)
        found.append(float(loss))
    assert found[-1] < found[0]


def test_gradients_are_accumulated_by_hand():
    """The mean of two halves' gradients is that of the whole batch, where curvature is that of one fixed batch."""
    x, y = batch(8)
    halves = [(x[:4], y[:4]), (x[4:], y[4:])]
    net = Mlp()
    optimizer, grad_fn = loop(net)
    _, whole = grad_fn(x, y)
    parts = [grad_fn(*half)[1] for half in halves]
    mean = [(one + two) / 2 for one, two in zip(*parts, strict=True)]
    for wanted, found in zip(whole, mean, strict=True):
        np.testing.assert_allclose(found.asnumpy(), wanted.asnumpy(), rtol=1e-5, atol=1e-6)
    optimizer(mean)
    assert optimizer.step == 1


def test_two_networks_that_play_against_each_other():
    """A GAN: each half has its own optimizer; a step of one leaves the other's weights and curvature alone."""
    generator, critic = Mlp((2, 4, 5), seed=0), Mlp((5, 4, 1), seed=1)
    settings = {"interval": 2, "refresh": ALWAYS}
    makes, judges = thor.THOR(generator, 0.01, 0.1, **settings), thor.THOR(critic, 0.01, 0.1, **settings)

    def judged(real, noise):
        return ops.softplus(-critic(real)).mean() + ops.softplus(critic(generator(noise))).mean()

    def made(noise):
        return ops.softplus(-critic(generator(noise))).mean()

    judge, make = thor.value_and_grad(judged, judges), thor.value_and_grad(made, makes)
    real = batch()[0]
    for seed in range(4):
        noise = Tensor(np.random.default_rng(seed).standard_normal((6, 2)).astype(np.float32))
        before = values(generator)
        _, gradients = judge(real, noise)
        judges(gradients)
        assert all(np.array_equal(value, before[name]) for name, value in values(generator).items())
        before = values(critic)
        _, gradients = make(noise)
        makes(gradients)
        assert all(np.array_equal(value, before[name]) for name, value in values(critic).items())
    assert [r.refreshes for r in (*makes.layers, *judges.layers)] == [2] * 4


class Both(nn.Cell):
    """A wrapper that holds both halves, as GANs are often written."""

    def __init__(self):
        super().__init__()
        self.generator, self.critic = Mlp((2, 4, 5), seed=0), Mlp((5, 4, 1), seed=1)

    def construct(self, noise):
        return ops.softplus(-self.critic(self.generator(noise))).mean()


def test_a_wrapper_of_both_halves_trains_one_of_them():
    both = Both()
    judges = thor.THOR(both.critic, 0.01, 0.1, interval=2, refresh=ALWAYS)
    with pytest.raises(ValueError, match="attached to a THOR optimizer already .layer critic.*out of params"):
        thor.THOR(both, 0.01, 0.1)
    makes = thor.THOR(both, 0.01, 0.1, interval=2, refresh=ALWAYS, params=both.generator.trainable_params())
    assert [layer.name for layer in makes.layers] == ["generator.layers.0", "generator.layers.1"]
    step, before = thor.TrainStep(both, None, makes, jit=False), values(both.critic)
    noise = Tensor(np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32))
    for _ in range(3):
        step(noise)
    assert all(np.array_equal(value, values(both.critic)[name]) for name, value in before.items())
    assert [r.refreshes for r in makes.layers] == [2, 2] and [r.refreshes for r in judges.layers] == [0, 0]


def test_a_step_that_is_not_finite_moves_nothing():
    x, y = batch()
    net = Mlp()
    optimizer, grad_fn = loop(net)
    before = values(net)
    _, gradients = grad_fn(x * np.inf, y)
    optimizer(gradients)
    assert all(np.array_equal(value, before[name]) for name, value in values(net).items())
    assert (optimizer.step, int(optimizer.skipped_steps.asnumpy()[0])) == (0, 1)
    _, gradients = grad_fn(x, y)
    optimizer([gradient * np.nan for gradient in gradients])
    assert all(np.array_equal(value, before[name]) for name, value in values(net).items())


def test_calls_that_cannot_work_are_refused():
    net = Mlp()
    optimizer, grad_fn = loop(net)
    with pytest.raises(RuntimeError, match="needs the forward pass.*TrainStep.*value_and_grad"):
        optimizer([])
    _, gradients = grad_fn(*batch())
    with pytest.raises(ValueError, match="gradients must be 4, one for each of optimizer.parameters, but got 3"):
        optimizer(gradients[:3])
    with pytest.raises(TypeError, match="must be a thor.THOR or an nn.Optimizer, but got list"):
        thor.value_and_grad(squared_error, net.trainable_params())
    with pytest.raises(TypeError, match="forward must be a function of a batch, but got 3"):
        thor.value_and_grad(3, optimizer)


def test_inputs_that_cannot_reach_the_compiled_function_are_refused():
    net = Mlp()
    optimizer = thor.THOR(net, 0.05, 0.1)

    def forward(x, y, *, weight=1.0):
        return weight * squared_error(net(x), y)

    grad_fn = thor.value_and_grad(forward, optimizer, jit=False)
    x, y = batch()
    with pytest.raises(TypeError, match="forward: input 'weight' has no position"):
        grad_fn(x, y, weight=2.0)
    with pytest.raises(ValueError, match=r"the batch is empty: input 0 has shape \(0, 5\)"):
        grad_fn(x[:0], y=y[:0])
    loss, _ = grad_fn(x, y=y)
    assert float(loss) == float(squared_error(net(x), y))


def test_a_loss_that_is_no_number_is_told_as_what_forward_returns():
    net = Mlp()
    grad_fn = thor.value_and_grad(lambda x, y: (net(x), y), thor.THOR(net, 0.05, 0.1), jit=False)
    with pytest.raises(TypeError, match="forward must return the loss alone"):
        grad_fn(*batch())


@pytest.mark.parametrize("inside", [True, False])
def test_a_hyper_parameter_that_is_a_function_is_read_once_a_step(inside):
    """THOR's inner optimizer, or an optimizer by itself; a call that gives gradients alone reads nothing."""
    net, read = Mlp(), []

    def rate():
        read.append(0.1 / (1 + len(read)))
        return read[-1]

    optimizer = first_order.Momentum(net.trainable_params(), rate, alpha=0.9)
    if inside:
        optimizer = thor.THOR(net, None, 0.1, inner=optimizer)
    made = len(read)

    def forward(x, y):
        return squared_error(net(x), y)

    grad_fn = thor.value_and_grad(forward, optimizer)
    grad_fn(*batch())
    for _ in range(3):
        _, gradients = grad_fn(*batch())
        optimizer(gradients)
    assert len(read) - made == 3


def test_the_optimizer_answers_as_an_nn_optimizer_does():
    net = Mlp()
    optimizer, _ = loop(net)
    assert list(optimizer.parameters) == net.trainable_params()
    assert float(optimizer.get_lr()) == pytest.approx(0.05) and float(optimizer.learning_rate) == pytest.approx(0.05)
    assert int(optimizer.global_step.asnumpy()[0]) == 0
