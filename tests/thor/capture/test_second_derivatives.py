"""Losses that hold derivatives of the network by its input: gradients are exact, factors are those of the dense layers.

The reference computes value, slopes and second derivative of an MLP together, in Taylor series, and differentiates the
loss by weights and pre-activations with complex steps: f'(x) = Im f(x + i h) / h, exact to rounding for a tiny h.
"""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from tests.support import reference
from tests.support.derivatives import CLOSE, Penalty, gathered, plain_gradients
from tests.support.networks import Mlp, make, values

SIZES = (2, 4, 3, 1)
POINTS, KNOWN = 7, 5
TINY = 1e-30


def data(seed=1):
    """Points, points of known values, and these."""
    rng = np.random.default_rng(seed)
    shapes = (POINTS, 2), (KNOWN, 2), (KNOWN, 1)
    return [Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


# -- the losses, each for the compiler and for the reference --------------------------------------------------------


class Loss(nn.Cell):
    """A mean over the points of something with derivatives, and the squared error at known points."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, known, target):
        return self.at_points(x) + ((self.net(known) - target) ** 2).mean()


class ByGradOperation(Loss):
    def __init__(self, net):
        super().__init__(net)
        self.gradient = ops.GradOperation()

    def at_points(self, x):
        return (self.gradient(self.net)(x) ** 2).mean()


class ByGrad(Loss):
    def __init__(self, net):
        super().__init__(net)
        self.gradient = ms.grad(net)

    def at_points(self, x):
        return (self.gradient(x) ** 2).mean()


class ByValueAndGrad(Loss):
    def __init__(self, net):
        super().__init__(net)
        self.both = ms.value_and_grad(net)

    def at_points(self, x):
        value, slopes = self.both(x)
        return (value**2).mean() + (slopes**2).mean()


class ByVjp(Loss):
    def at_points(self, x):
        value, pull_back = ms.vjp(self.net, x)
        slopes = pull_back(ops.ones_like(value))[0]
        return (slopes**2).mean()


class ByLoop(Loss):
    """A gradient by the input for each of several functions of the output, as for a Jacobian row by row."""

    def __init__(self, net):
        super().__init__(net)

        def once(x):
            return net(x).sum()

        def twice(x):
            return 2.0 * net(x[:3]).sum()

        self.rows = [ms.grad(once), ms.grad(twice)]

    def at_points(self, x):
        loss = 0.0
        for row in self.rows:
            loss = loss + (row(x) ** 2).mean()
        return loss


class SecondOrder(Loss):
    """u_00 - u, as in the Helmholtz equation: the gradient of a gradient."""

    def __init__(self, net):
        super().__init__(net)

        def slope(x):
            return ms.grad(net)(x)[:, 0].sum()

        self.second = ms.grad(slope)

    def at_points(self, x):
        return (self.second(x)[:, 0] ** 2).mean()


class FourthOrder(SecondOrder):
    """The second derivative of the second derivative."""

    def __init__(self, net):
        super().__init__(net)
        second = self.second

        def curve(x):
            return second(x)[:, 0].sum()

        def third(x):
            return ms.grad(curve)(x)[:, 0].sum()

        self.fourth = ms.grad(third)

    def at_points(self, x):
        return (self.fourth(x)[:, 0] ** 2).mean()


def of_slopes(calls):
    return [(calls[0][1] ** 2).mean()]


def of_value_and_slopes(calls):
    return [(calls[0][0] ** 2).mean(), (calls[0][1] ** 2).mean()]


def of_rows(calls):
    return [(calls[0][1] ** 2).mean(), 4.0 * (calls[1][1] ** 2).sum() / (2 * POINTS)]


def of_curves(calls):
    return [(calls[0][2] ** 2).mean()]


#: of each loss the function of the calls' series, and how many points each call has
LOSSES = {
    ByGradOperation: (of_slopes, [POINTS]),
    ByGrad: (of_slopes, [POINTS]),
    ByValueAndGrad: (of_value_and_slopes, [POINTS]),
    ByVjp: (of_slopes, [POINTS]),
    ByLoop: (of_rows, [POINTS, 3]),
    SecondOrder: (of_curves, [POINTS]),
}


# -- the reference ----------------------------------------------------------------------------------------------------


def series(layers, x, shifts):
    """(inputs of each layer; value [N, 1], slopes [N, 2], second derivative by x_0 [N, 1]) with shifted outputs."""
    value, slopes = x, [np.tile(axis, (len(x), 1)) for axis in np.eye(x.shape[1])]
    curve, inputs = np.zeros_like(x), []
    for index, ((weight, bias), shift) in enumerate(zip(layers, shifts, strict=True)):
        inputs.append(value)
        value, slopes, curve = value @ weight.T + bias + shift, [s @ weight.T for s in slopes], curve @ weight.T
        if index < len(layers) - 1:
            value = np.tanh(value)
            first = 1.0 - value * value
            curve = first * curve - 2.0 * value * first * slopes[0] ** 2
            slopes = [first * s for s in slopes]
    return inputs, (value, np.concatenate(slopes, 1), curve)


class Reference:
    """Loss, gradients and factors of one of ``LOSSES``, in float64."""

    def __init__(self, net, kind, x, known, target):
        of, counts = LOSSES[kind]
        x, known, self.target = (each.asnumpy().astype(np.float64) for each in (x, known, target))
        self.of, self.points = of, [*(x[:count] for count in counts), known]
        self.layers = [
            tuple(p.asnumpy().astype(np.float64) for p in (layer.weight, layer.bias)) for layer in net.layers
        ]
        self.shifts = [[np.zeros((len(x), len(w))) for w, _ in self.layers] for x in self.points]

    def loss(self, layers, shifts):
        calls = [series(layers, x, shift)[1] for x, shift in zip(self.points, shifts, strict=True)]
        return sum(self.of(calls[:-1])) + ((calls[-1][0] - self.target) ** 2).mean()

    def by(self, array, put):
        """The gradient of the loss by an array; ``put`` makes (layers, shifts) of its replacement."""
        found = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            moved = array.astype(complex)
            moved[index] += TINY * 1j
            found[index] = self.loss(*put(moved)).imag / TINY
        return found

    def gradients(self):
        """Of weight and bias of each layer."""
        return [
            self.by(each, lambda new, i=i, j=j: (replaced(self.layers, i, j, new), self.shifts))
            for i, layer in enumerate(self.layers)
            for j, each in enumerate(layer)
        ]

    def factors(self, at):
        """A is the mean over the calls, G the sum, of the dense layer's factors; M is the number of points."""
        parts = []
        for call, x in enumerate(self.points):
            a = series(self.layers, x, self.shifts[call])[0][at]
            g = self.by(
                self.shifts[call][at], lambda new, call=call: (self.layers, replaced(self.shifts, call, at, new))
            )
            parts.append((*reference.dense_factors(a, g, True), len(x)))
        called = [part for part in parts if np.any(part[1])]
        return sum(a for a, _, _ in called) / len(called), sum(g * POINTS / count for _, g, count in called)


def replaced(nested, i, j, value):
    """A list of lists with one entry replaced."""
    return [[value if (i, j) == (k, n) else each for n, each in enumerate(row)] for k, row in enumerate(nested)]


def test_the_reference_derives_as_finite_differences_do():
    """Slopes and second derivatives of the series against values of the network alone."""
    net, (x, _, _) = Mlp(SIZES), data()
    layers = [tuple(p.asnumpy().astype(np.float64) for p in (y.weight, y.bias)) for y in net.layers]
    x, zeros = x.asnumpy().astype(np.float64), [0.0] * 3

    def value(x):
        return series(layers, x, zeros)[1][0]

    _, slopes, curve = series(layers, x, zeros)[1]
    step = np.array([1e-4, 0.0])
    np.testing.assert_allclose(slopes[:, :1], (value(x + step) - value(x - step)) / 2e-4, rtol=1e-6, atol=1e-8)
    wanted = (value(x + step) - 2 * value(x) + value(x - step)) / 1e-8
    np.testing.assert_allclose(curve, wanted, rtol=1e-5, atol=1e-6)


# -- gradients and factors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOSSES)
def test_gradients_and_factors_are_those_of_the_whole_loss(kind):
    net, batch = Mlp(SIZES), data()
    wanted = Reference(net, kind, *batch)
    dense = [wanted.factors(at) for at in range(3)]
    loss, found, optimizer = gathered(net, kind, batch)
    np.testing.assert_allclose(loss, wanted.loss(wanted.layers, wanted.shifts), rtol=1e-5)
    for ours, theirs in zip(found, wanted.gradients(), strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
    for at, (a, g) in enumerate(dense):
        ours_a, ours_g = optimizer.factors(f"net.layers.{at}")
        np.testing.assert_allclose(ours_a, a, **CLOSE)
        np.testing.assert_allclose(ours_g, g, **CLOSE)


@pytest.mark.parametrize("kind", [ByGrad, SecondOrder])
def test_operator_by_operator_they_are_the_same(kind):
    batch = data()
    _, compiled, first = gathered(Mlp(SIZES), kind, batch)
    _, found, second = gathered(Mlp(SIZES), kind, batch, jit=False)
    for ours, theirs in zip(found, compiled, strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
    for layer in first.layers:
        for ours, theirs in zip(second.factors(layer.name), first.factors(layer.name), strict=True):
            np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_a_fourth_derivative_has_the_gradients_of_the_network_without_taps():
    batch = data()
    wanted = plain_gradients(Mlp(SIZES), FourthOrder, batch)
    _, found, optimizer = gathered(Mlp(SIZES), FourthOrder, batch)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6 * np.abs(theirs).max())
    assert [layer.refreshes for layer in optimizer.layers] == [1, 1, 1]


# -- what is told -----------------------------------------------------------------------------------------------------


class SlopesAlone(nn.Cell):
    """A loss of derivatives alone, to which the last layer's output says nothing."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.gradient = ms.grad(net)

    def construct(self, x):
        return ((self.gradient(x) - 1.0) ** 2).mean()


def test_a_layer_whose_output_is_in_no_loss_takes_the_plain_gradient(caplog):
    """The last layer's weight is in the derivatives, but its output is not."""
    batch = data()[:1]
    wanted, net = plain_gradients(Mlp(SIZES), SlopesAlone, batch), Mlp(SIZES)
    before = net.layers[2].weight.asnumpy().copy()
    with caplog.at_level("WARNING", logger="thor"):
        _, _, optimizer = gathered(net, SlopesAlone, batch)
    assert [layer.refreshes for layer in optimizer.layers] == [1, 1, 0]
    np.testing.assert_allclose(net.layers[2].weight.asnumpy(), before - 0.05 * wanted[4], **CLOSE)
    assert "net.layers.2" in caplog.text and "derivatives" in caplog.text


class Mapped(nn.Cell):
    """A loss by ``mindspore.jacrev`` or ``jacfwd``, which map over the Jacobian, or by ``vmap`` itself."""

    def __init__(self, net, transform):
        super().__init__()
        self.net = net
        self.mapped = transform(net)

    def construct(self, x):
        return (self.mapped(x) ** 2).mean()


@pytest.mark.parametrize(("transform", "accumulate"), [(ms.jacrev, 1), (ms.jacrev, 2), (ms.jacfwd, 1), (ms.vmap, 1)])
def test_a_mapped_gradient_is_refused_with_its_cure(transform, accumulate):
    whole = Mapped(Mlp(SIZES), transform)
    _, step = make(whole, loss_fn=None, jit=True, accumulate=accumulate)
    with pytest.raises(RuntimeError, match=r"jacrev.*mindspore\.grad of one output at.*skip=.*MindSpore says: ."):
        step(data()[0])


def test_what_is_wrong_with_a_loss_is_still_told_first():
    whole = nn.SequentialCell(Mlp(SIZES))
    _, step = make(whole, loss_fn=None, jit=True)
    with pytest.raises(TypeError, match="the loss must be one number"):
        step(data()[0])


def test_micro_batches_under_a_gradient_make_the_step_of_the_whole_batch():
    x = data()[0].asnumpy()[:6]
    nets = [Mlp(SIZES), Mlp(SIZES)]
    wholes = [Penalty(net) for net in nets]
    for whole, parts in zip(wholes, (1, 2), strict=True):
        _, step = make(whole, loss_fn=None, jit=True, accumulate=parts, split="block")
        for part in np.split(x, parts):
            step(Tensor(part))
    moved = [values(net) for net in nets]
    for name, value in moved[0].items():
        np.testing.assert_allclose(moved[1][name], value, **CLOSE)
