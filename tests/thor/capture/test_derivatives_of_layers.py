"""Every kind of layer gathers its factors under a gradient by the network's input.

The gradient of the loss by a layer's output is found without taps, as that by a shift of the output. Factors of a loss
without derivatives that has these gradients are the reference: other tests hold them to dense ones.
"""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from tests.support.derivatives import CLOSE, Penalty, gathered, plain_gradients
from tests.support.networks import fill
from thor.runtime.modes import in_mode


class Shifted(nn.Cell):
    """A layer whose output can be shifted: the gradient by the shift is that by the output."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.shift, self.seen = layer, None, None
        self.recording = False

    def construct(self, x):
        y = self.layer(x)
        if self.recording:  # operator by operator only
            self.seen, self.shift = x, Parameter(ops.zeros_like(y), name=f"{self.layer.cls_name}_shift")
        if self.shift is not None:
            y = y + self.shift
        return y


class Scaled(nn.Cell):
    """Rows of a table times the input; with ``tied``, scores by the table follow."""

    def __init__(self, tied, wrap):
        super().__init__()
        table, dense = nn.Embedding(6, 4), nn.Dense(4, 6, has_bias=False)
        if tied:
            dense.weight = table.embedding_table
        self.table, self.dense = wrap(table), wrap(dense)
        self.ids = Tensor(np.random.default_rng(2).integers(0, 6, (3, 2)).astype(np.int32))
        self.tanh = nn.Tanh()

    def construct(self, x):
        return self.tanh(self.dense(self.tanh(self.table(self.ids) * x)))


def behind(*makers):
    """A function of a wrapper that makes a network of wrapped layers with a tanh behind each."""
    return lambda wrap: nn.SequentialCell([part for make in makers for part in (wrap(make()), nn.Tanh())])


#: of each kind of layer the network and the shape of its input
KINDS = {
    "dense on three axes": (behind(lambda: nn.Dense(3, 4), lambda: nn.Dense(4, 2)), (4, 3, 3)),
    "mint.nn.Linear": (behind(lambda: mint.nn.Linear(3, 4)), (4, 3)),
    "convolution": (behind(lambda: nn.Conv2d(2, 3, 3), lambda: nn.Conv2d(3, 2, 1)), (3, 2, 4, 5)),
    "padded convolution": (behind(lambda: nn.Conv2d(2, 3, 2, 2, "pad", (1, 0, 1, 0))), (3, 2, 4, 5)),
    "convolution of many positions": (behind(lambda: nn.Conv2d(2, 4, 3, group=2, has_bias=True)), (2, 2, 12, 12)),
    "convolution over one axis": (behind(lambda: nn.Conv1d(2, 3, 3)), (3, 2, 6)),
    "transposed convolution": (behind(lambda: nn.Conv2dTranspose(2, 3, 3, 2)), (3, 2, 3, 3)),
    "LayerNorm": (behind(lambda: nn.Dense(3, 4), lambda: nn.LayerNorm((4,))), (5, 3)),
    "BatchNorm": (behind(lambda: nn.Conv2d(2, 3, 2), lambda: nn.BatchNorm2d(3)), (3, 2, 4, 4)),
    "embedding": (lambda wrap: Scaled(False, wrap), (3, 2, 4)),
    "tied table": (lambda wrap: Scaled(True, wrap), (3, 2, 4)),
}


def filled(build, wrap=lambda layer: layer):
    return fill(build(wrap), 0)


def gradients_by_outputs(build, kind, batch):
    """(layer, its input, the gradient of the loss by its output) for each layer of a network without taps."""
    shifted = []

    def wrap(layer):
        shifted.append(Shifted(layer))
        return shifted[-1]

    net = filled(build, wrap).set_train()
    for each in shifted:
        each.recording = True
    with in_mode(ms.PYNATIVE_MODE):
        net(batch[0])
    for each in shifted:
        each.recording = False
    with in_mode(ms.GRAPH_MODE):
        found = ms.grad(kind(net).set_train(), None, [each.shift for each in shifted])(*batch)
    found = found if isinstance(found, tuple) else (found,)
    return [(each.layer, each.seen, g) for each, g in zip(shifted, found, strict=True)]


class WithTheseGradients(nn.Cell):
    """A loss of layers with given inputs whose gradients by their outputs are given; no derivative is in it.

    The layers have the names that they have in a network by :func:`behind`, for the numbers drawn by name.
    """

    def __init__(self, layers, inputs, gradients):
        super().__init__()
        self.net = nn.SequentialCell([part for layer in layers for part in (layer, nn.Tanh())])
        self.inputs, self.gradients = inputs, gradients

    def construct(self, x):
        loss = 0.0 * x.sum()
        for k in range(len(self.inputs)):
            loss = loss + (self.net[2 * k](self.inputs[k]) * self.gradients[k]).sum()
        return loss


def check_kind(kind, options):
    """The gradients are those without taps, the factors those of a first derivative with the same output gradients."""
    build, shape = KINDS[kind]
    batch = [Tensor(np.random.default_rng(3).standard_normal(shape).astype(np.float32))]
    wanted = plain_gradients(filled(build), Penalty, batch)
    _, found, ours = gathered(filled(build), Penalty, batch, **options)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, **CLOSE)
    layers, inputs, gradients = zip(*gradients_by_outputs(build, Penalty, batch), strict=True)
    _, _, plain = gathered(layers, lambda cells: WithTheseGradients(cells, inputs, gradients), batch, **options)
    assert [layer.refreshes for layer in ours.layers] == [1] * len(plain.layers)
    for mine, theirs in zip(ours.layers, plain.layers, strict=True):
        for a, b in zip(ours.factors(mine.name), plain.factors(theirs.name), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())


#: (kind, sharing) that the fast tests take: every formula of a factor once
FAST = {
    ("dense on three axes", "expand"), ("convolution", "pooled"), ("convolution of many positions", "expand"),
    ("BatchNorm", "pooled"), ("embedding", "pooled"), ("tied table", "expand"),
}  # fmt: skip
CASES = [
    pytest.param(kind, sharing, marks=() if (kind, sharing) in FAST else pytest.mark.slow)
    for kind in KINDS
    for sharing in ("pooled", "expand", "reduce")
]


@pytest.mark.parametrize(("kind", "sharing"), CASES)
def test_every_kind_of_layer_gathers_under_a_gradient(kind, sharing):
    check_kind(kind, {"weight_sharing": sharing} | ({"factor_share": 0.7} if sharing == "expand" else {}))


@pytest.mark.parametrize("kind", [pytest.param("dense on three axes", marks=pytest.mark.slow), "convolution"])
@pytest.mark.parametrize("split", ["block+mean", "block+rank"])
def test_every_split_gathers_under_a_gradient(kind, split):
    check_kind(kind, {"split": split, "rank": 2, "block_size": 2})
