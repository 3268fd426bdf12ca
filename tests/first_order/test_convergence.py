"""Every optimizer reaches the minimum of standard functions, and learns handwritten digits."""

from functools import partial

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from sklearn.datasets import load_digits

import thor
from first_order import SOAP, Adafactor, Adam, Momentum, Muon
from tests.first_order.arrays import make_parameters

pytestmark = pytest.mark.slow

FIRST_ORDER = {
    "Adam": partial(Adam, learning_rate=0.02),
    "Adam nesterov": partial(Adam, learning_rate=0.02, use_nesterov=True),
    "Momentum": partial(Momentum, learning_rate=0.05),
    "Momentum nesterov": partial(Momentum, learning_rate=0.05, mode="nesterov"),
    "Adafactor": partial(Adafactor, lr=0.05),
    "Muon": partial(Muon, learning_rate=0.02, weight_decay=0.0),
    "SOAP": partial(SOAP, learning_rate=0.02, weight_decay=0.0),
}


def rosenbrock(x):
    return (1 - x[0]) ** 2 + 5 * (x[1] - x[0] ** 2) ** 2


def quadratic(x):
    return (x * x * Tensor([1.0, 10.0], ms.float32)).sum()


@pytest.mark.parametrize("kind", FIRST_ORDER)
@pytest.mark.parametrize(
    ("function", "start", "rate"), [(quadratic, [2.0, -1.0], 0.05), (rosenbrock, [-0.5, 0.8], 0.02)]
)
def test_it_finds_the_minimum(kind, function, start, rate):
    if kind.startswith("Momentum"):
        rate = 0.01
    x = ms.Parameter(Tensor(start, ms.float32), name="x")
    optimizer = FIRST_ORDER[kind]([x], **{"lr" if kind == "Adafactor" else "learning_rate": rate})

    def forward():
        return function(x)

    differentiate = ms.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit
    def step():
        loss, gradients = differentiate()
        return ops.depend(loss, optimizer(gradients))

    first = float(step().asnumpy())
    for _ in range(600):
        last = float(step().asnumpy())
    assert last < 1e-2 * first


@pytest.mark.parametrize("kind", FIRST_ORDER)
def test_it_factors_a_matrix(kind):
    rng = np.random.default_rng(0)
    target = Tensor((rng.standard_normal((8, 2)) @ rng.standard_normal((2, 6))).astype(np.float32))
    u, v = make_parameters([rng.standard_normal(shape).astype(np.float32) for shape in ((8, 2), (2, 6))])
    optimizer = FIRST_ORDER[kind]([u, v])

    def forward():
        return ((ops.matmul(u, v) - target) ** 2).mean()

    differentiate = ms.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit
    def step():
        loss, gradients = differentiate()
        return ops.depend(loss, optimizer(gradients))

    losses = [float(step().asnumpy()) for _ in range(300)]
    assert losses[-1] < 0.02 * losses[0]


@pytest.mark.parametrize("kind", [*FIRST_ORDER, "THOR"])
def test_it_learns_digits(kind):
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype(np.float32), labels.astype(np.int32)
    ms.set_seed(0)
    net, loss_fn = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10)), nn.CrossEntropyLoss()
    if kind == "THOR":
        step = thor.TrainStep(net, loss_fn, thor.THOR(net, 0.05, 0.1, interval=20, clip=1e-2))
    else:
        optimizer = FIRST_ORDER[kind](net.trainable_params())
        differentiate = ms.value_and_grad(lambda_with(net, loss_fn), None, optimizer.parameters)

        @ms.jit
        def step(a, b):
            loss, gradients = differentiate(a, b)
            return ops.depend(loss, optimizer(gradients))

    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = rng.integers(0, 1400, 64)
        step(Tensor(x[rows]), Tensor(y[rows]))
    found = net(Tensor(x[1400:])).asnumpy().argmax(1)
    assert (found == y[1400:]).mean() > 0.85


def lambda_with(net, loss_fn):
    def forward(a, b):
        return loss_fn(net(a), b)

    return forward
