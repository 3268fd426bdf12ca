"""Small networks drawn at random: plans that Hypothesis can print and shrink, and the Cells made of them.

A plan is plain data. ``build(plan)`` is the network that is trained; ``build(plan, apart=True)`` computes the same with
every activation outside its layer and can add zeros to each layer's output, which is how the gradients by those outputs
are found without thor (random_reference.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import mindspore as ms
import numpy as np
from hypothesis import strategies as st
from mindspore import Tensor, nn

from tests.support import reference
from tests.support.networks import fill

ACTIVATIONS = ("tanh", "sigmoid", "relu", "")
CAPTURED = ("dense", "conv", "embedding")  # with norms=False


@dataclass(frozen=True)
class Kernel:
    """What a convolution adds to its channels."""

    size: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad_mode: str = "valid"
    padding: tuple[int, int, int, int] | int = 0
    group: int = 1

    def pads(self, height: int, width: int) -> reference.Pads:
        if self.pad_mode == "same":
            return reference.same_pads((height, width), self.size, self.stride, self.dilation)
        return (0, 0, 0, 0) if self.pad_mode == "valid" else self.padding

    def output(self, height: int, width: int) -> tuple[int, int]:
        top, bottom, left, right = self.pads(height, width)
        sizes = zip((height + top + bottom, width + left + right), self.size, self.stride, self.dilation, strict=True)
        return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sizes)


@dataclass(frozen=True)
class Layer:
    """One weight: a layer used once or twice, or two layers that are tied."""

    kind: str  # one of CAPTURED, "batch_norm", "batch_norm_1d" or "layer_norm"
    inputs: int
    outputs: int
    bias: bool = False
    activation: str = ""
    inside: bool = False  # the activation is an argument of nn.Dense
    use: str = "once"  # "twice": one Cell, two calls; "tied": two Cells, one weight, one bias
    aside: str = ""  # "frozen", "frozen bias", "skipped"
    kernel: Kernel = Kernel()

    @property
    def captured(self) -> bool:
        return self.kind in CAPTURED and self.aside not in ("frozen", "skipped")

    @property
    def homogeneous(self) -> bool:
        """Whether A has a coordinate for the bias."""
        return self.bias and self.aside != "frozen bias"


@dataclass(frozen=True)
class Plan:
    """A network, its batch, and how THOR cuts its factors."""

    layers: tuple[Layer, ...]
    shape: tuple[int, ...]  # of the input, batch first
    pooling: str = "flatten"  # between convolutions and dense layers; or "mean" over pixels
    half: bool = False  # Cells compute in float16
    path: str = "native"  # of convolutions: THOR_CONVOLUTION
    parts: bool = False  # whether factors of convolutions are gathered example by example
    block_size: int = 128
    split: str = "block"
    rank: int = 1
    order: str = "channel"
    share: float = 1.0  # of the examples, for factors
    damping: float = 0.1
    whole: bool = False  # whether inverses of cut factors are kept as one matrix
    seed: int = 0

    @property
    def names(self) -> list[str]:
        """Of each layer: that of its first Cell."""
        first = np.cumsum([0] + [1 + (layer.use == "tied") for layer in self.layers])
        return [f"layers.{index}" for index in first[:-1]]

    def captured(self) -> list[tuple[str, Layer]]:
        return [(name, layer) for name, layer in zip(self.names, self.layers, strict=True) if layer.captured]


class Random(nn.Cell):
    """The network of a plan."""

    def __init__(self, plan: Plan, apart: bool):
        super().__init__()
        cells, self.calls = [], []
        for layer in plan.layers:
            inside = layer.inside and not apart
            cells.append(_cell(layer, inside))
            call = [(len(cells) - 1, layer, inside)]
            if layer.use == "tied":
                cells.append(_cell(layer, inside))
                cells[-1].weight = cells[-2].weight
                if layer.bias:
                    cells[-1].bias = cells[-2].bias
                call.append((len(cells) - 1, layer, inside))
            self.calls += call * (1 + (layer.use == "twice"))
        self.layers = nn.CellList(cells)
        self.activations = nn.CellList([nn.Tanh(), nn.Sigmoid(), nn.ReLU()])
        self.pooling = plan.pooling
        self.zeros: tuple | None = None  # added to the layers' outputs, call by call
        self.seen: list | None = None  # (layer, input, output) of each call

    def construct(self, x):
        for index, (cell, layer, inside) in enumerate(self.calls):
            if layer.kind == "dense" and x.ndim == 4:
                x = x.reshape(len(x), -1) if self.pooling == "flatten" else x.mean((2, 3))
            y = self.layers[cell](x)
            if self.zeros is not None:
                y = y + self.zeros[index]
            if self.seen is not None:
                self.seen.append((layer, x, y))
            x = y if inside or not layer.activation else self.activations[ACTIVATIONS.index(layer.activation)](y)
        return x


def _cell(layer: Layer, inside: bool) -> nn.Cell:
    if layer.kind == "dense":
        activation = layer.activation if inside and layer.activation else None
        return nn.Dense(layer.inputs, layer.outputs, has_bias=layer.bias, activation=activation)
    if layer.kind == "embedding":
        return nn.Embedding(layer.inputs, layer.outputs)
    if layer.kind == "batch_norm":
        return nn.BatchNorm2d(layer.inputs)
    if layer.kind == "batch_norm_1d":
        return nn.BatchNorm1d(layer.inputs)
    if layer.kind == "layer_norm":
        return nn.LayerNorm((layer.inputs,))
    k = layer.kernel
    return nn.Conv2d(layer.inputs, layer.outputs, k.size, k.stride, k.pad_mode, k.padding, k.dilation, k.group,
                     has_bias=layer.bias)  # fmt: skip


def build(plan: Plan, apart: bool = False) -> Random:
    """The plan's network, with the weights of its seed: the same values for both forms."""
    net = Random(plan, apart)
    fill(net, plan.seed)
    for name, layer in zip(plan.names, plan.layers, strict=True):
        cell = net.layers[int(name.split(".")[1])]
        if layer.aside == "frozen":
            for parameter in cell.get_parameters():
                parameter.requires_grad = False
        elif layer.aside == "frozen bias":
            cell.bias.requires_grad = False
    if plan.half:
        net.to_float(ms.float16)
    return net.set_train()


def batches(plan: Plan, shape: tuple[int, ...], count: int = 1) -> list[tuple[Tensor, Tensor]]:
    """(x, target) pairs for outputs of ``shape``; inputs have a mean far from zero."""
    rng = np.random.default_rng(plan.seed + 1)
    made = []
    for _ in range(count):
        if plan.layers[0].kind == "embedding":
            x = rng.integers(0, plan.layers[0].inputs, plan.shape).astype(np.int32)
        else:
            x = (rng.standard_normal(plan.shape) + 0.4).astype(np.float32)
        made.append((Tensor(x), Tensor(rng.standard_normal(shape).astype(np.float32))))
    return made


def loss_fn(output, target):
    """Mean over all rows of the squared error, float32 behind a float16 network."""
    return ((output.astype(ms.float32) - target) ** 2).sum(-1).mean()


# -- strategies ------------------------------------------------------------------------------------------------------


@st.composite
def dense_layers(draw, inputs: int, most: int, norms: tuple[str, ...] = ("layer_norm",)) -> list[Layer]:
    """1 to ``most`` dense layers, now and then a normalisation before one."""
    found: list[Layer] = []
    for _ in range(draw(st.integers(1, most))):
        use = draw(st.sampled_from(["once", "once", "once", "twice", "tied"])) if inputs <= 9 else "once"
        width = inputs if use != "once" else draw(st.integers(1, 9))
        activation = draw(st.sampled_from(ACTIVATIONS))
        if draw(st.integers(0, 4)) == 0 and inputs > 1:
            found.append(Layer(draw(st.sampled_from(norms)), inputs, inputs))
        found.append(Layer("dense", inputs, width, draw(st.booleans()), activation, draw(st.booleans()), use))
        inputs = width
    return found


@st.composite
def kernels(draw, channels: int, height: int, width: int) -> tuple[Kernel, int]:
    """A kernel that fits the picture, and how many channels it makes."""
    group = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
    pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
    steps = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (2, 1)])
    mode = draw(st.sampled_from(["same", "valid", "pad"]))
    padding = draw(st.tuples(*[st.integers(0, 2)] * 4)) if mode == "pad" else 0
    kernel = Kernel(draw(pairs), draw(steps), draw(steps), mode, padding, group)
    if min(kernel.output(height, width)) < 1:
        kernel = Kernel(kernel.size, kernel.stride, kernel.dilation, "same", 0, group)
    return kernel, group * draw(st.integers(1, 3))


@st.composite
def pictures(draw) -> Plan:
    """1 to 3 convolutions, BatchNorm behind some, and a dense layer; in float32 or float16."""
    channels, size = draw(st.integers(1, 4)), draw(st.tuples(st.integers(3, 6), st.integers(3, 6)))
    shape = (draw(st.integers(2, 5)), channels, *size)
    found: list[Layer] = []
    for _ in range(draw(st.integers(1, 3))):
        kernel, width = draw(kernels(channels, *size))
        norm, activation = draw(st.integers(0, 3)) == 0, draw(st.sampled_from(ACTIVATIONS))
        bias = draw(st.booleans())
        found.append(Layer("conv", channels, width, bias, "" if norm else activation, kernel=kernel))
        channels, size = width, kernel.output(*size)
        if norm:
            found.append(Layer("batch_norm", channels, channels, activation=activation))
    pooling = draw(st.sampled_from(["flatten", "mean"]))
    inputs = channels * (size[0] * size[1] if pooling == "flatten" else 1)
    found.append(Layer("dense", inputs, draw(st.integers(1, 4)), draw(st.booleans())))
    path = draw(st.sampled_from(["native", "patches"]))
    # Products of patches are rounded to float16 in another order than native convolutions: no twin to compare with.
    half = draw(st.integers(0, 3)) == 0 and path == "native" and all(y.kind != "batch_norm" for y in found)
    return Plan(tuple(found), shape, pooling, half, path, draw(st.booleans()))


@st.composite
def rows(draw) -> Plan:
    """1 to 4 dense layers over rows with up to two leading axes, in float32 or float16."""
    inputs = draw(st.integers(1, 12))
    leading = draw(st.lists(st.integers(1, 4), max_size=1))
    examples = draw(st.integers(1, 7))
    norms = ("layer_norm", "batch_norm_1d") if not leading and examples > 2 else ("layer_norm",)
    layers = draw(dense_layers(inputs, 4, norms))
    half = draw(st.integers(0, 3)) == 0 and all(layer.kind == "dense" for layer in layers)
    return Plan(tuple(layers), (examples, *leading, inputs), half=half)


@st.composite
def tokens(draw) -> Plan:
    """An embedding and up to 2 dense layers."""
    vocabulary, width = draw(st.integers(2, 9)), draw(st.integers(1, 6))
    leading = draw(st.lists(st.integers(1, 4), max_size=1))
    layers = [Layer("embedding", vocabulary, width), *draw(dense_layers(width, 2))]
    return Plan(tuple(layers), (draw(st.integers(1, 6)), *leading))


@st.composite
def plans(draw, aside: bool | None = None) -> Plan:
    """A network and its settings; ``aside`` tells whether a layer is frozen or skipped (None: either)."""
    net = draw(st.one_of(rows(), pictures(), tokens()))
    layers = list(net.layers)
    own = [i for i, layer in enumerate(layers) if layer.kind in CAPTURED]
    if aside is None:
        aside = draw(st.integers(0, 3)) == 0
    if aside and len(own) > 1:
        at = draw(st.sampled_from(own))
        kinds = ["frozen", "skipped", *(["frozen bias"] if layers[at].bias else [])]
        layers[at] = Layer(**{**vars(layers[at]), "aside": draw(st.sampled_from(kinds))})
    return Plan(
        tuple(layers), net.shape, net.pooling, net.half, net.path, parts=net.parts,
        block_size=draw(st.one_of(st.integers(1, 12), st.just(128))),
        split=draw(st.sampled_from(["block", "block+mean", "block+rank"])), rank=draw(st.integers(1, 3)),
        order=draw(st.sampled_from(["channel", "position"])), share=draw(st.sampled_from([1.0, 1.0, 0.5, 0.3])),
        damping=draw(st.sampled_from([0.01, 0.03, 0.1, 0.5, 3.0])), whole=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )  # fmt: skip
