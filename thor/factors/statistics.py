"""Cells that compute a factor's statistics, assembled from smaller Cells when a layer is captured.

No ``construct`` has a branch, because MindSpore's compiler parses and infers both sides of a branch at every use, and
these Cells are used twice per layer. All choices are made beforehand, in :func:`statistics_of`.
"""

from __future__ import annotations

from mindspore import nn, ops

from thor.factors import formulas
from thor.factors.blocks import Cut
from thor.runtime import convolution
from thor.runtime.graph_ops import constant, shared


class DenseInput(nn.Cell):
    """Features and scale of a dense layer's input rows (see formulas.py)."""

    def construct(self, x):
        return formulas.dense_input(x)


class DenseOutput(nn.Cell):
    """Features and scale of a dense layer's output gradients."""

    def construct(self, x):
        return formulas.dense_output(x)


class ConvInput(nn.Cell):
    """Features and scale of a convolution's input."""

    def __init__(self, geometry: convolution.Geometry):
        super().__init__(auto_prefix=False)
        self.geometry = geometry

    def construct(self, x):
        return formulas.conv_input(x, self.geometry)


class ConvInputByPosition(ConvInput):
    """As :class:`ConvInput`, with coordinates ordered (kernel position, channel)."""

    def construct(self, x):
        return formulas.conv_input_by_position(x, self.geometry)


class ConvOutput(nn.Cell):
    """Features and scale of a convolution's output gradients."""

    def __init__(self, groups: int):
        super().__init__(auto_prefix=False)
        self.groups = groups

    def construct(self, x):
        return formulas.conv_output(x, self.groups)


class FirstExamples(nn.Cell):
    """Features and scale of the first k of N examples; (N / k)^``power`` corrects the scale (see formulas.py)."""

    def __init__(self, features: nn.Cell, share: float, power: int):
        super().__init__(auto_prefix=False)
        self.features, self.share, self.power = features, share, power

    def construct(self, x):
        kept, ratio = formulas.first_examples(x, self.share)
        features, scale = self.features(kept)
        return features, scale * ratio**self.power


class AppendConstants(nn.Cell):
    """Features with constant coordinates appended, and scale."""

    def __init__(self, features: nn.Cell, values: tuple[float, ...], by_rows: bool):
        super().__init__(auto_prefix=False)
        self.features, self.values = features, values
        self.with_constants = formulas.append_constants_by_rows if by_rows else formulas.append_constants

    def construct(self, x):
        features, scale = self.features(x)
        return self.with_constants(features, self.values), scale


class Blocks(nn.Cell):
    """The diagonal blocks of a factor."""

    def __init__(self, size: int, count: int, by_rows: bool):
        super().__init__(auto_prefix=False)
        self.size, self.count = size, count
        self.gram = formulas.block_gram_by_rows if by_rows else formulas.block_gram

    def construct(self, features, scale):
        return self.gram(features, scale, self.size, self.count)


class Diagonal(nn.Cell):
    """The diagonal of a factor, as blocks of one row."""

    def __init__(self, by_rows: bool):
        super().__init__(auto_prefix=False)
        self.diagonal = formulas.diagonal_by_rows if by_rows else formulas.diagonal

    def construct(self, features, scale):
        return self.diagonal(features, scale)


class NothingBeside(nn.Cell):
    """Zeros, for plain blocks: they have no scaled mean and no low-rank part."""

    def construct(self, features, scale, probe):
        return ops.zeros_like(probe)


class MeanBeside(nn.Cell):
    """The scaled mean of "block+mean"."""

    def __init__(self, by_rows: bool):
        super().__init__(auto_prefix=False)
        self.mean = formulas.scaled_mean_by_rows if by_rows else formulas.scaled_mean

    def construct(self, features, scale, probe):
        return self.mean(features, scale)


class MeanAndBiasBeside(MeanBeside):
    """The scaled mean, followed by the entry of a separate bias, for which the features have no coordinate."""

    def __init__(self, by_rows: bool):
        super().__init__(by_rows)
        self.bias_mean = formulas.bias_mean_by_rows if by_rows else formulas.bias_mean

    def construct(self, features, scale, probe):
        return ops.cat((self.mean(features, scale), self.bias_mean(features, scale)), 1)


class SketchBeside(nn.Cell):
    """Z = A Q of "block+rank"."""

    def __init__(self, by_rows: bool):
        super().__init__(auto_prefix=False)
        self.sketch = formulas.sketch_by_rows if by_rows else formulas.sketch

    def construct(self, features, scale, probe):
        return self.sketch(features, scale, probe)


class Statistics(nn.Cell):
    """Fresh statistics of one factor: blocks, the scaled mean or low-rank part, and a 1 that counts uses."""

    def __init__(self, features: nn.Cell, blocks: nn.Cell, beside: nn.Cell):
        super().__init__(auto_prefix=False)
        self.features, self.blocks, self.beside = features, blocks, beside

    def construct(self, x, probe):
        features, scale = self.features(x)
        return self.blocks(features, scale), self.beside(features, scale, probe), constant((1,), 1.0)


def statistics_of(
    cut: Cut, share: float, kind: str, homogeneous: bool = False, geometry: convolution.Geometry | None = None,
    copies: int = 1, order: str = "channel",
) -> Statistics:  # fmt: skip
    """The Cell that computes a factor's statistics from a layer's input or output gradient.

    All layers of one form share it. ``homogeneous`` appends the bias's coordinate 1 to the features. Only the first
    ``share`` of the examples is used.
    """
    by_rows = kind.startswith("dense")
    features = _features(kind, geometry, copies, order)
    if share < 1.0:
        features = shared(FirstExamples, features, share, 2 if kind.endswith("output") else 0)
    inside = cut.dim - cut.bias_apart - homogeneous
    values = (1.0,) * homogeneous + (0.0,) * (cut.padded - inside - homogeneous)
    if values:
        features = shared(AppendConstants, features, values, by_rows)
    blocks = shared(Diagonal, by_rows) if cut.size == 1 else shared(Blocks, cut.size, cut.count, by_rows)
    return shared(Statistics, features, blocks, _beside(cut, by_rows))


def _features(kind: str, geometry: convolution.Geometry | None, copies: int, order: str) -> nn.Cell:
    if kind == "conv_input":
        return shared(ConvInputByPosition if order == "position" else ConvInput, geometry)
    if kind == "conv_output":
        return shared(ConvOutput, copies)
    return shared(DenseInput if kind == "dense_input" else DenseOutput)


def _beside(cut: Cut, by_rows: bool) -> nn.Cell:
    if cut.split == "block+mean":
        return shared(MeanAndBiasBeside if cut.bias_apart else MeanBeside, by_rows)
    return shared(SketchBeside, by_rows) if cut.split == "block+rank" else shared(NothingBeside)
