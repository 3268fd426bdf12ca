"""Formulas of a layer's Kronecker factors A and G (pure functions of tensors, float32).

Every layer is brought to one form: *features* X [e, c, d, R], a scale and a number of rows. There are c independent
copies (groups of a convolution, else 1), d coordinates, and e parts of R rows (examples, or example-position pairs).
The factor is scale times the sum of X X^T over the parts. In a convolution of many positions each example is a part:
bringing all rows into one part would copy the patches, its largest tensors by far. The features of a dense layer stay
*by rows*, as they come: X^T [1, 1, R, d]. Transpositions are avoided where possible: see
``thor.runtime.graph_ops.swapped``.

The loss L is a mean over M terms, and A (x) G estimates the Fisher of the terms, F = (1/M) sum of the outer products of
their gradients. With g = dL/ds of a row, and N rows:

    layer    rows     A, of the input                G, of g                         source
    dense    N        (1/N) sum a a^T                M sum g g^T                     Martens & Grosse 2015
    conv     B P      (1/B) sum of patches p p^T     (M / P) sum g g^T               Grosse & Martens 2016 (KFC)
    deconv   B P      (1/B) sum a a^T                (M / P) sum of patches q q^T    a transposed convolution
    token    N        diag of token frequencies      M sum g g^T                     a = one-hot: A is diagonal
    norm     B        1                              diag of M sum_b (sum_p g x)^2   the exact diagonal Fisher

B counts the examples, P the positions. A transposed convolution is a convolution whose input and output have changed
places: q are the patches of the gradient of its output, and P counts the positions of its input. With a bias, A's last
coordinate is the constant 1. How rows belong to terms is the layer's *weight sharing* (Eschenhagen et al. 2023):

    pooled   M = B: the rows of an example belong to one term, and are taken as independent
    expand   every row is a term: M counts the rows whose g is not zero, and A is a mean over these alone
    reduce   M = B: the rows of an example belong to one term; a is their mean, g is their sum

Without weight sharing, one row an example, the three are the same.

A factor may be computed from the first k of N examples, which are a random sample if batches are. A is a mean over rows
and takes k for N. The sum of G is over k of N examples, and is multiplied by N / k (:func:`first_examples`).

Only the diagonal blocks are computed, [e c n, b, R] x [e c n, R, b]: no d x d product is formed.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from thor.runtime.graph_ops import constant, constants, first_entries, is_at_least, itself, ones_of, reshaped, swapped

_product, _sum = ops.MatMul(), ops.ReduceSum()
_gram, _gram_by_rows = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul(transpose_a=True)
_append, _append_by_rows = ops.Concat(2), ops.Concat(3)
_cast, _gather = ops.Cast(), ops.Gather()
_sum_by_id = ops.UnsortedSegmentSum()

#: From this number of positions on, each example is a part. With fewer, its product would be larger than its features.
PART_POSITIONS = 128


def first_examples(x, share):
    """The first k of the N examples in x (axis 0), k being ``share`` of N but at least 1; and N / k."""
    count = x.shape[0]
    kept = part_of(count, share)
    return (_first_rows, itself)[is_at_least(kept, count)](x, kept), count / kept


def _first_rows(x, count):
    return first_entries(x, (count,) + x.shape[1:])


@ops.constexpr
def part_of(count: int, share: float) -> int:
    """A share of a number, but at least 1."""
    return max(1, int(count * share))


@ops.constexpr
def terms_of(examples: int, rows: int) -> int:
    """The number of terms: that of the batch's examples; of ``rows`` where the batch is unknown, which is 0."""
    return examples if examples > 0 else rows


def dense_input(x):
    """Input rows [N, I] as features by rows [1, 1, N, I], A's scale 1 / N, and N."""
    rows, inputs = x.shape
    return reshaped(_cast(x, ms.float32), (1, 1, rows, inputs)), 1.0 / rows, rows


def dense_output(g, examples):
    """Output gradients [N, O] as features by rows [1, 1, N, O], G's scale M, and N."""
    rows, outputs = g.shape
    return reshaped(_cast(g, ms.float32), (1, 1, rows, outputs)), 1.0 * terms_of(examples, rows), rows


def by_example(x, examples):
    """Rows [N, d] as [B, N / B, d] float32."""
    rows, width = x.shape
    return reshaped(_cast(x, ms.float32), (terms_of(examples, rows), -1, width))


def reduced_dense_input(x, examples):
    """As :func:`dense_input`, of the mean row of each example."""
    return dense_input(by_example(x, examples).mean(1))


def reduced_dense_output(g, examples):
    """As :func:`dense_output`, of the sum of each example's rows."""
    return dense_output(by_example(g, examples).sum(1), examples)


def conv_input(x, geometry):
    """Input [B, C, H, W] as features [B, g, (C / g) k, P], or [1, g, (C / g) k, B P], A's scale 1 / B, and B P.

    Coordinates are ordered (channel, kernel position).
    """
    patches = geometry(_cast(x, ms.float32))
    return parts(patches, geometry.groups), 1.0 / patches.shape[0], patches.shape[0] * patches.shape[2]


def conv_input_by_position(x, geometry):
    """As :func:`conv_input`, with coordinates ordered (kernel position, channel)."""
    patches = geometry(_cast(x, ms.float32))
    batch, coordinates, positions = patches.shape
    groups, area = geometry.groups, geometry.area
    ordered = swapped(patches, batch * groups, coordinates // (groups * area), area, positions)
    return parts(reshaped(ordered, patches.shape), groups), 1.0 / batch, batch * positions


def conv_output(g, groups, examples):
    """Output gradients [B, O, H, W] as features [B, g, O / g, P], or [1, g, O / g, B P], G's scale M / P, and B P."""
    batch, channels, height, width = g.shape
    positions = height * width
    values = parts(reshaped(_cast(g, ms.float32), (batch, channels, positions)), groups)
    return values, 1.0 * terms_of(examples, batch) / positions, batch * positions


def conv_transpose_input(x, groups):
    """A transposed convolution's input [B, I, H, W] as features [B, g, I / g, P], A's scale 1 / B, and B P."""
    values, _, rows = conv_output(x, groups, 0)
    return values, 1.0 / x.shape[0], rows


def conv_transpose_output(g, geometry, examples):
    """Output gradients [B, O, H, W] as features [B, g, (O / g) k, P] of their patches, G's scale M / P, and B P."""
    values, _, rows = conv_input(g, geometry)
    batch = g.shape[0]
    return values, 1.0 * terms_of(examples, batch) * batch / rows, rows


def centred(features):
    """Features [e, c, d, R] less the mean over their coordinates.

    A convolution of standardised weights W' = (W - mean) / sigma, each output's own, has dL/dW = P (dL/dW') / sigma but
    for its part along W', which is neglected. P removes the mean. So A is that of P a, and G that of g / sigma.
    """
    return features - features.mean(2, keep_dims=True)


def deviations(weight):
    """Standard deviation [O] of each output's weights [O, ...], as weight standardisation uses it."""
    flat = reshaped(_cast(weight, ms.float32), (weight.shape[0], -1))
    rest = flat - flat.mean(1, keep_dims=True)
    return ops.sqrt((rest * rest).mean(1) + 1e-10)


def apart(features, batch):
    """Features of B examples as [B, c, d, P]: undoes the joining of all rows in one part (:func:`parts`)."""
    return (_taken_apart, itself)[is_at_least(features.shape[0], batch)](features, batch)


def _taken_apart(features, batch):
    _, copies, dim, rows = features.shape
    return reshaped(swapped(features, 1, copies * dim, batch, rows // batch), (batch, copies, dim, rows // batch))


def mask_of(valid, features):
    """A mask of rows, [N] or [B, P], in a shape that multiplies their features, by rows or not."""
    return reshaped(valid, _shape_of_mask(valid.ndim, features.shape[0]))


@ops.constexpr
def _shape_of_mask(axes: int, count: int) -> tuple[int, ...]:
    return (1, 1, -1, 1) if axes == 1 else (count, 1, 1, -1)


def scale_of_counted_sum(terms, counted):
    """The scale of a G of which ``counted`` of M terms are gathered."""
    return terms * terms / counted


def scale_of_sums(terms, _):
    """The scale of G for one row an example, its sum."""
    return 1.0 * terms


def scale_of_mean(_, rows):
    """The scale of an A of so many rows."""
    return 1.0 / rows


def reduced_conv(features, scale, by_sum):
    """Features [B, c, d, P] with one row an example: [1, c, d, B], the mean of its P rows, or their sum; and B.

    ``scale`` is that of the reduced features.
    """
    batch, copies, dim, positions = features.shape
    reduced = _sum(features, -1) * _weight_of_positions(positions, by_sum)
    return reduced.transpose(1, 2, 0).reshape(1, copies, dim, batch), scale, batch


@ops.constexpr
def _weight_of_positions(positions: int, by_sum: bool) -> float:
    return 1.0 if by_sum else 1.0 / positions


def rows_with_gradient(g):
    """Which rows of output gradients [N, O] are not all zero, [N] float32 of 0 and 1."""
    sizes = _product(ops.abs(_cast(g, ms.float32)), constant((g.shape[1], 1), 1.0))
    return _cast(reshaped(sizes, (-1,)) > 0, ms.float32)


def positions_with_gradient(g):
    """Which positions of output gradients [B, O, ...] are not all zero, [B, positions] float32 of 0 and 1."""
    return _cast(ops.abs(_cast(g, ms.float32)).sum(1) > 0, ms.float32).reshape(g.shape[0], -1)


def at_least_one(count):
    """A count as a divisor."""
    return ops.maximum(count, ones_of(count))


def parts(values, groups):
    """[B, C, P] as features: each example is a part if it has many positions, else all rows are in one part."""
    return (_joined_parts, _parts_of_examples)[is_at_least(values.shape[2], PART_POSITIONS)](values, groups)


def _parts_of_examples(values, groups):
    batch, channels, positions = values.shape
    return reshaped(values, (batch, groups, channels // groups, positions))


def _joined_parts(values, groups):
    batch, channels, positions = values.shape
    rows = swapped(values, 1, batch, channels, positions)
    return reshaped(rows, (1, groups, channels // groups, batch * positions))


def token_frequencies(ids, vocabulary, valid):
    """Relative frequency of each token in ids [...], as diagonal blocks [1, V, 1, 1]: the A of an embedding.

    Only the ids count whose entry in ``valid`` [N], of 0 and 1, is 1.
    """
    counts = _sum_by_id(valid, ids.reshape(-1), vocabulary)
    return (counts / at_least_one(valid.sum())).reshape(1, vocabulary, 1, 1)


def balance(rows, blocks, dim):
    """The scale s for which the factors R s of the weight's rows and C / s of its columns have equal mean diagonals.

    A weight that is used twice, as an embedding and as a decoder, has F ~ R_1 (x) C_1 + R_2 (x) C_2. One pair of
    factors approximates this sum by (R_1 + R_2) (x) (C_1 + C_2), which is good only if R and C are scaled alike in both
    uses. ``rows`` is the diagonal of R, ``blocks`` are those of C, of dimension ``dim``.
    """
    mean_rows, mean_columns = rows.mean(), traces(blocks).sum() / dim
    floor = constant((), 1e-30)
    return ops.sqrt(ops.maximum(mean_columns, floor) / ops.maximum(mean_rows, floor))


def diagonal_fisher(gradients, terms):
    """Diagonal blocks [1, C, 1, 1] of the empirical Fisher M sum_m g_m g_m^T, from the parts g_m of the terms, [., C].

    With a mean loss L over M terms, dL/dw = sum_m g_m, and M g_m is the gradient of term m's own loss. The Fisher is
    the mean of the squares of these gradients.
    """
    return ((gradients * gradients).sum(0) * terms).reshape(1, gradients.shape[1], 1, 1)


def append_constants(features, values):
    """Append constant coordinates to features [e, c, d, R]: 1 for a bias, zeros for padding."""
    count, copies, _, rows = features.shape
    return _append((features, constants((count, copies, len(values), rows), values, 2)))


def append_constants_by_rows(features, values):
    """As :func:`append_constants`, for features by rows, [1, 1, R, d]."""
    return _append_by_rows((features, constants((1, 1, features.shape[2], len(values)), values, 3)))


def block_gram(features, scale, size, count):
    """The diagonal blocks [c, n, b, b] of scale * X X^T, for features [e, c, n b, R]."""
    part_count, copies, _, rows = features.shape
    blocks = reshaped(features, (-1, size, rows))
    sums = sum_over_parts(reshaped(_gram(blocks, blocks), (part_count, -1)))
    return reshaped(sums * scale, (copies, count, size, size))


def block_gram_by_rows(features, scale, size, count):
    """As :func:`block_gram`, for features by rows, [1, 1, R, n b]."""
    rows = features.shape[2]
    blocks = reshaped(swapped(features, 1, rows, count, size), (count, rows, size))
    return reshaped(_gram_by_rows(blocks, blocks) * scale, (1, count, size, size))


def diagonal(features, scale):
    """The diagonal [c, d, 1, 1] of scale * X X^T, for features [e, c, d, R]."""
    part_count, copies, dim, _ = features.shape
    sums = sum_over_parts(reshaped(_sum(features * features, -1), (part_count, -1)))
    return reshaped(sums * scale, (copies, dim, 1, 1))


def diagonal_by_rows(features, scale):
    """As :func:`diagonal`, for features by rows, [1, 1, R, d]."""
    return reshaped(_sum(features * features, 2) * scale, (1, features.shape[3], 1, 1))


def scaled_mean(features, weight):
    """The scaled mean u [c, d, 1] = ``weight`` * sum of all rows, where the weight is :func:`weight_of_mean`.

    u u^T is count * scale times the outer product of the mean of the rows that are not zero. By Jensen's inequality
    scale * X X^T - u u^T is positive semi-definite, and no larger multiple of u u^T has this property for all X. For a
    dense layer's A, u is the mean input.
    """
    part_count, copies, dim, rows = features.shape
    sums = _product(reshaped(features, (-1, rows)), constant((rows, 1), 1.0))
    return reshaped(sum_over_parts(reshaped(sums, (part_count, -1))) * weight, (copies, dim, 1))


def scaled_mean_by_rows(features, weight):
    """As :func:`scaled_mean`, for features by rows, [1, 1, R, d]."""
    _, _, rows, dim = features.shape
    sums = _product(constant((1, rows), 1.0), reshaped(features, (rows, dim)))
    return reshaped(sums * weight, (1, dim, 1))


def bias_mean(features, weight, count):
    """The entry [c, 1, 1] of :func:`scaled_mean` for a coordinate that is 1 in all ``count`` rows."""
    return constant((features.shape[1], 1, 1), 1.0) * (count * weight)


def weight_of_mean(scale, count):
    """The weight sqrt(scale / count) of the sum of all rows, of which ``count`` are not zero."""
    return (scale / count) ** 0.5


def sketch(features, scale, probe):
    """Z = scale * X (X^T Q) [c, n b, r] for a probe Q [c, n b, r]: the factor times Q, without forming the factor."""
    probes = ops.broadcast_to(probe.expand_dims(0), features.shape[:1] + probe.shape)
    z = _gram(features, _gram_by_rows(probes, features))
    return reshaped(sum_over_parts(reshaped(z, (features.shape[0], -1))) * scale, probe.shape)


def sketch_by_rows(features, scale, probe):
    """As :func:`sketch`, for features by rows, [1, 1, R, n b]."""
    transposed = reshaped(features, features.shape[1:])
    return _gram_by_rows(transposed, ops.bmm(transposed, probe)) * scale


def sum_over_parts(values):
    """Sum values [e, m] over the parts: [1, m]. A matrix product, for MindSpore's CPU sums along axis 0 slowly."""
    return _product(constant((1, values.shape[0]), 1.0), values)


def traces(blocks):
    """The trace of each copy's factor, [c], from its blocks [c, n, b, b]."""
    copies, count, size, _ = blocks.shape
    diagonals = _gather(blocks.reshape(copies * count, size * size), _diagonal_entries(size), 1)
    return _sum(diagonals.reshape(copies, -1), -1)


@ops.constexpr
def _diagonal_entries(size: int) -> Tensor:
    return Tensor(np.arange(0, size * size, size + 1, dtype=np.int32))
