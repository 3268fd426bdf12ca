"""Cells that compute a factor's statistics, assembled from smaller Cells when a layer is captured.

No ``construct`` has a branch, because MindSpore's compiler parses and infers both sides of a branch at every use, and
these Cells are used twice per layer. All choices are made beforehand, in :func:`statistics_of`.
"""

from __future__ import annotations

from mindspore import nn, ops

from thor.factors import formulas
from thor.factors.blocks import Cut
from thor.runtime.geometry import Geometry, VolumeGeometry
from thor.runtime.graph_ops import constant, shared, zeros_of

#: How the rows of a layer belong to the loss's terms (formulas.py).
POOLED, EXPAND, REDUCE = "pooled", "expand", "reduce"
WEIGHT_SHARING = (POOLED, EXPAND, REDUCE)

AnyGeometry = Geometry | VolumeGeometry


class Batch(nn.Cell):
    """The number of examples of the batch that a graph is compiled for; 0 if it is unknown.

    It is read when a graph is compiled, and by an uncompiled step at each call. A graph is compiled anew for each
    number of examples, for it belongs to the shapes of the inputs.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.examples = 0

    def construct(self):
        return self.examples


#: The one batch that is processed at a time.
BATCH = Batch()


class Features(nn.Cell):
    """Features, scale and number of rows of a layer's input or output gradient; they may read the batch's examples."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.batch = BATCH


class DenseInput(Features):
    """Of a dense layer's input rows (see formulas.py)."""

    def construct(self, x):
        return formulas.dense_input(x)


class DenseOutput(Features):
    """Of a dense layer's output gradients."""

    def construct(self, x):
        return formulas.dense_output(x, self.batch.examples)


class ReducedDenseInput(Features):
    """Of the mean input row of each example."""

    def construct(self, x):
        return formulas.reduced_dense_input(x, self.batch.examples)


class ReducedDenseOutput(Features):
    """Of each example's sum of output gradients."""

    def construct(self, x):
        return formulas.reduced_dense_output(x, self.batch.examples)


class ConvInput(Features):
    """Of a convolution's input."""

    def __init__(self, geometry: AnyGeometry):
        super().__init__()
        self.geometry = geometry

    def construct(self, x):
        return formulas.conv_input(x, self.geometry)


class ConvInputByPosition(ConvInput):
    """As :class:`ConvInput`, with coordinates ordered (kernel position, channel)."""

    def construct(self, x):
        return formulas.conv_input_by_position(x, self.geometry)


class ConvOutput(Features):
    """Of a convolution's output gradients."""

    def __init__(self, groups: int):
        super().__init__()
        self.groups = groups

    def construct(self, x):
        return formulas.conv_output(x, self.groups, self.batch.examples)


class ConvTransposeInput(Features):
    """Of a transposed convolution's input."""

    def __init__(self, groups: int):
        super().__init__()
        self.groups = groups

    def construct(self, x):
        return formulas.conv_transpose_input(x, self.groups)


class ConvTransposeOutput(Features):
    """Of a transposed convolution's output gradients."""

    def __init__(self, geometry: AnyGeometry):
        super().__init__()
        self.geometry = geometry

    def construct(self, x):
        return formulas.conv_transpose_output(x, self.geometry, self.batch.examples)


class Centred(Features):
    """Features less the mean over their coordinates."""

    def __init__(self, features: nn.Cell):
        super().__init__()
        self.features = features

    def construct(self, x):
        features, scale, rows = self.features(x)
        return formulas.centred(features), scale, rows


class ReducedConv(Features):
    """Of the mean patch of each example, or of its sum of output gradients; ``features`` have each example apart."""

    def __init__(self, features: nn.Cell, by_sum: bool):
        super().__init__()
        self.features, self.by_sum = features, by_sum
        self.scale = formulas.scale_of_sums if by_sum else formulas.scale_of_mean

    def construct(self, x):
        features, _, _ = self.features(x)
        batch = x.shape[0]
        terms = formulas.terms_of(self.batch.examples, batch)
        scale = self.scale(terms, batch)
        return formulas.reduced_conv(formulas.apart(features, batch), scale, self.by_sum)


class FirstExamples(nn.Cell):
    """Features of the first k of N examples, times N / k if they are a sum over examples, as G is (see formulas.py)."""

    def __init__(self, features: nn.Cell, share: float, is_sum: bool):
        super().__init__(auto_prefix=False)
        self.features, self.share, self.power = features, share, 1 if is_sum else 0

    def construct(self, x):
        kept, ratio = formulas.first_examples(x, self.share)
        features, scale, rows = self.features(kept)
        return features, scale * ratio**self.power, rows


class AppendConstants(nn.Cell):
    """Features with constant coordinates appended, and scale."""

    def __init__(self, features: nn.Cell, values: tuple[float, ...], by_rows: bool):
        super().__init__(auto_prefix=False)
        self.features, self.values = features, values
        self.with_constants = formulas.append_constants_by_rows if by_rows else formulas.append_constants

    def construct(self, x):
        features, scale, rows = self.features(x)
        return self.with_constants(features, self.values), scale, rows


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

    def construct(self, features, scale, weight, rows, probe):
        return zeros_of(probe)


class MeanBeside(nn.Cell):
    """The scaled mean of "block+mean"."""

    def __init__(self, by_rows: bool):
        super().__init__(auto_prefix=False)
        self.mean = formulas.scaled_mean_by_rows if by_rows else formulas.scaled_mean

    def construct(self, features, scale, weight, rows, probe):
        return self.mean(features, weight)


class MeanAndBiasBeside(MeanBeside):
    """The scaled mean, followed by the entry of a separate bias, for which the features have no coordinate."""

    def construct(self, features, scale, weight, rows, probe):
        return ops.cat((self.mean(features, weight), formulas.bias_mean(features, weight, rows)), 1)


class SketchBeside(nn.Cell):
    """Z = A Q of "block+rank"."""

    def __init__(self, by_rows: bool):
        super().__init__(auto_prefix=False)
        self.sketch = formulas.sketch_by_rows if by_rows else formulas.sketch

    def construct(self, features, scale, weight, rows, probe):
        return self.sketch(features, scale, probe)


class Statistics(nn.Cell):
    """Fresh statistics of one factor: blocks, the scaled mean or low-rank part, and a 1 that counts uses.

    ``valid`` is not read; see :class:`CountedInput`.
    """

    def __init__(self, features: nn.Cell, blocks: nn.Cell, beside: nn.Cell):
        super().__init__(auto_prefix=False)
        self.features, self.blocks, self.beside = features, blocks, beside

    def construct(self, x, valid, probe):
        features, scale, rows = self.features(x)
        weight = formulas.weight_of_mean(scale, rows)
        return self.blocks(features, scale), self.beside(features, scale, weight, rows, probe), constant((1,), 1.0)


class AllRows(Features):
    """Every row of an output gradient [N, O] counts: (ones [N], the number of terms)."""

    def construct(self, g):
        return constant((g.shape[0],), 1.0), 1.0 * formulas.terms_of(self.batch.examples, g.shape[0])


class RowsWithGradient(nn.Cell):
    """The rows of an output gradient that are not all zero count: (0 or 1, the number of terms).

    They are [N] of [N, O], or the positions [B, H W] of a convolution's [B, O, H, W].
    """

    def __init__(self, is_convolution: bool):
        super().__init__(auto_prefix=False)
        self.find = formulas.positions_with_gradient if is_convolution else formulas.rows_with_gradient

    def construct(self, g):
        valid = self.find(g)
        return valid, formulas.at_least_one(valid.sum())


class WindowsWithGradient(nn.Cell):
    """As :class:`RowsWithGradient`, of a transposed convolution, whose rows are patches of its output gradient."""

    def __init__(self, geometry: AnyGeometry):
        super().__init__(auto_prefix=False)
        self.geometry = geometry

    def construct(self, g):
        valid = formulas.positions_with_gradient(self.geometry(g))
        return valid, formulas.at_least_one(valid.sum())


def rows_of(sharing: str, kind: str, geometry: AnyGeometry | None = None) -> nn.Cell:
    """The Cell that tells which rows of an output gradient count, and the number of terms."""
    if sharing != EXPAND:
        return shared(AllRows)
    if kind == "conv_transpose":
        return shared(WindowsWithGradient, geometry)
    return shared(RowsWithGradient, kind == "conv")


class CountedInput(Statistics):
    """As :class:`Statistics`, of an A over the rows that count: every one is a term (weight sharing "expand").

    ``valid`` [N], or [B, P] of a convolution, is 1 for a row that counts and else 0.
    """

    def construct(self, x, valid, probe):
        counted = formulas.at_least_one(valid.sum())
        features, _, _ = self.features(x)
        features = features * formulas.mask_of(valid, features)
        share = 1.0 / counted  # of one row: the scale of A, and the weight of the mean
        return self.blocks(features, share), self.beside(features, share, share, counted, probe), constant((1,), 1.0)


class CountedOutput(Statistics):
    """As :class:`CountedInput`, of a G, M times a sum over the M rows that count. The others are zero."""

    def construct(self, x, valid, probe):
        terms = formulas.at_least_one(valid.sum())
        features, _, _ = self.features(x)
        return self.blocks(features, terms), self.beside(features, terms, 1.0, terms, probe), constant((1,), 1.0)


class CountedOfFirst(Statistics):
    """As :class:`CountedInput`, or as :class:`CountedOutput` if ``is_sum``, from the first ``share`` of the examples.

    G is M times a sum over all M terms, of which so many are gathered as count among those examples.
    """

    def __init__(self, features: nn.Cell, blocks: nn.Cell, beside: nn.Cell, share: float, is_sum: bool):
        super().__init__(features, blocks, beside)
        self.share, self.scale = share, formulas.scale_of_counted_sum if is_sum else formulas.scale_of_mean

    def construct(self, x, valid, probe):
        terms = formulas.at_least_one(valid.sum())
        x, _ = formulas.first_examples(x, self.share)
        valid, _ = formulas.first_examples(valid, self.share)
        counted = formulas.at_least_one(valid.sum())
        features, _, _ = self.features(x)
        features = features * formulas.mask_of(valid, features)
        scale = self.scale(terms, counted)
        weight = formulas.weight_of_mean(scale, counted)
        return self.blocks(features, scale), self.beside(features, scale, weight, counted, probe), constant((1,), 1.0)


def statistics_of(
    cut: Cut, share: float, kind: str, homogeneous: bool = False, geometry: AnyGeometry | None = None,
    copies: int = 1, order: str = "channel", sharing: str = POOLED, centred: bool = False,
) -> Statistics:  # fmt: skip
    """The Cell that computes a factor's statistics from a layer's input or output gradient.

    All layers of one form share it. ``homogeneous`` appends the bias's coordinate 1 to the features, ``centred`` takes
    the mean over the coordinates from them. Only the first ``share`` of the examples is used, but all where an
    example's rows are reduced to one.
    """
    by_rows, is_sum = kind.startswith("dense"), kind.endswith("output")
    features = _features(kind, geometry, copies, order, sharing == REDUCE)
    if centred:
        features = shared(Centred, features)
    if share < 1.0 and sharing == POOLED:
        features = shared(FirstExamples, features, share, is_sum)
    inside = cut.dim - cut.bias_apart - homogeneous
    values = (1.0,) * homogeneous + (0.0,) * (cut.padded - inside - homogeneous)
    if values:
        features = shared(AppendConstants, features, values, by_rows)
    blocks = shared(Diagonal, by_rows) if cut.size == 1 else shared(Blocks, cut.size, cut.count, by_rows)
    beside = _beside(cut, by_rows)
    if sharing == EXPAND and share < 1.0:
        return shared(CountedOfFirst, features, blocks, beside, share, is_sum)
    if sharing == EXPAND:
        return shared(CountedOutput if is_sum else CountedInput, features, blocks, beside)
    return shared(Statistics, features, blocks, beside)


def _features(kind: str, geometry: AnyGeometry | None, copies: int, order: str, reduced: bool) -> nn.Cell:
    if kind.startswith("conv"):
        if kind == "conv_input":
            features = shared(ConvInputByPosition if order == "position" else ConvInput, geometry)
        elif kind == "conv_output":
            features = shared(ConvOutput, copies)
        elif kind == "conv_transpose_input":
            features = shared(ConvTransposeInput, copies)
        else:
            features = shared(ConvTransposeOutput, geometry)
        return shared(ReducedConv, features, kind.endswith("output")) if reduced else features
    if kind == "dense_input":
        return shared(ReducedDenseInput if reduced else DenseInput)
    return shared(ReducedDenseOutput if reduced else DenseOutput)


def _beside(cut: Cut, by_rows: bool) -> nn.Cell:
    if cut.split == "block+mean":
        return shared(MeanAndBiasBeside if cut.bias_apart else MeanBeside, by_rows)
    return shared(SketchBeside, by_rows) if cut.split == "block+rank" else shared(NothingBeside)
