"""Tiny networks and batches for the tests of thor/."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import thor


class Mlp(nn.Cell):
    """Dense 5 -> 4, tanh, Dense 4 -> 3."""

    def __init__(self, sizes=(5, 4, 3), has_bias=True, seed=0):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(i, o, has_bias=has_bias) for i, o in zip(sizes, sizes[1:], strict=False)])
        self.tanh = nn.Tanh()
        fill(self, seed)

    def construct(self, x):
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index < last:
                x = self.tanh(x)
        return x


class Mixed(nn.Cell):
    """Grouped, asymmetrically padded convolution, BatchNorm, depthwise convolution, Dense."""

    def __init__(self, seed=0):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), pad_mode="pad", padding=(1, 0, 0, 1), group=2, has_bias=True)
        self.norm = nn.BatchNorm2d(4)
        self.depthwise = nn.Conv2d(4, 4, 3, pad_mode="same", group=4)
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        self.dense = nn.Dense(4 * 2 * 4, 3)
        fill(self, seed)

    def construct(self, x):
        x = self.relu(self.norm(self.conv(x)))
        x = self.relu(self.depthwise(x))
        return self.dense(self.flatten(x))


def fill(net: nn.Cell, seed: int) -> nn.Cell:
    """The network, with weights that depend on the seed alone, far from a small start, so that a wrong one shows."""
    rng = np.random.default_rng(seed)
    for parameter in net.trainable_params():
        value = rng.standard_normal(parameter.shape).astype(np.float32) * 0.5
        parameter.set_data(Tensor(value + (1.0 if parameter.name.endswith("gamma") else 0.0)))
    return net


def squared_error(output, target):
    """Mean over the batch of |output - target|^2."""
    return ((output - target) ** 2).sum(-1).mean()


def batch(count=6, inputs=5, outputs=3, seed=1, scale=1.0) -> tuple[Tensor, Tensor]:
    """(x, y) for an Mlp; the inputs have a mean far from zero."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, inputs)) + 0.7
    return Tensor((x * scale).astype(np.float32)), Tensor(rng.standard_normal((count, outputs)).astype(np.float32))


def images(count=4, seed=1) -> tuple[Tensor, Tensor]:
    """(x, y) for Mixed."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((count, 2, 4, 4)) + 0.3, rng.standard_normal((count, 3))
    return Tensor(x.astype(np.float32)), Tensor(y.astype(np.float32))


def make(net, *, lr=0.05, damping=0.1, jit=False, accumulate=1, loss_fn=squared_error, **options):
    """(optimizer, step): refreshed at every step from the last batch alone, without momentum, unless asked."""
    momentum = 0.9 if "inner" in options else 0.0  # the default, which is inner's to have
    settings = {"momentum": momentum, "interval": 1, "factor_decay": 0.0, "refresh": thor.TraceRule.thor_nt()} | options
    optimizer = thor.THOR(net, lr, damping, **settings)
    return optimizer, thor.TrainStep(net, loss_fn, optimizer, accumulate=accumulate, jit=jit)


def values(cell) -> dict[str, np.ndarray]:
    """Every Parameter's value, copied."""
    return {p.name: p.asnumpy().copy() for p in cell.get_parameters()}


def assert_equal(one, other) -> None:
    """Raise unless the Parameters of two Cells are equal to the last bit, and come in the same order."""
    ours, theirs = values(one), values(other)
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert value.tobytes() == theirs[name].tobytes(), name


def never(optimizer) -> None:
    """Put the next refresh and gathering off for ever."""
    far = Tensor(np.array([10**9], np.int32), ms.int32)
    optimizer.own_state.next_refresh.set_data(far)
    optimizer.own_state.next_gather.set_data(far)


def gradients(net, loss_fn, x, y) -> dict[str, np.ndarray]:
    """MindSpore's own gradient of the mean loss, by name of the weight."""
    weights = net.trainable_params()

    def forward(x, y):
        return loss_fn(net(x), y)

    _, grads = ms.value_and_grad(forward, None, weights)(x, y)
    return {w.name: g.asnumpy() for w, g in zip(weights, grads, strict=True)}


def matrix(grads: dict[str, np.ndarray], name: str) -> np.ndarray:
    """A layer's gradient as [O, I (+1)], the bias last."""
    weight = grads[f"{name}.weight"]
    weight = weight.reshape(len(weight), -1)
    bias = grads.get(f"{name}.bias")
    return weight if bias is None else np.concatenate([weight, bias[:, None]], axis=1)
