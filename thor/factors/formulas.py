"""What the Kronecker factors A and G of a layer are (pure functions of tensors, float32).

Every layer is brought to one form: *features* X [e, c, d, R], with c independent copies (groups of a convolution, else
1), d coordinates and e R rows (examples, or example-position pairs) in e parts, and a scale; the factor is scale times
the sum of X X^T over the parts. A convolution of many positions has each example as a part: gathering all rows in one
would copy the patches, which are its largest tensors by far. Of a dense layer they stay as they come, *by rows*: X^T
[1, 1, R, d]. Nothing is transposed that can do without: see ``thor.runtime.graph_ops.swapped``.

    layer    rows R   A, of the input                G, of g = dL/ds, L the mean loss    source
    dense    N        (1/N) sum a a^T                N sum g g^T                         Martens & Grosse 2015
    conv     B P      (1/B) sum of patches p p^T     (B / P) sum g g^T                   Grosse & Martens 2016 (KFC)
    token    N        diag of token frequencies      N sum g g^T                         a = one-hot: A is diagonal
    norm     B        1                              diag of B sum_b (sum_p g x)^2       the exact diagonal, see below

N counts every leading axis of a dense layer's input (K-FAC expand, Eschenhagen et al. 2023), B examples, P positions.
With a bias, A's last coordinate is the constant 1. Then A (x) G estimates the Fisher of the per-example losses.

A factor may be gathered from the first k of N examples, which are a random sample where batches are: A is a mean over
rows and takes k for N; g = dL/ds of a mean loss carries 1 / N, so that G also needs (N / k)^2 (:func:`first_examples`).

A factor is gathered block-diagonal in the first place, [e c n, b, R] x [e c n, R, b]: no d x d product is formed.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

from thor.runtime.graph_ops import constant, constants, reshaped, swapped

_product, _sum = ops.MatMul(), ops.ReduceSum()
_gram, _gram_by_rows = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul(transpose_a=True)
_behind, _behind_by_rows = ops.Concat(2), ops.Concat(3)
_cast = ops.Cast()

#: Positions from which on each example is a part: of fewer, the products are larger than what they are made of.
PART_POSITIONS = 128


def first_examples(x, share):
    """The first ``share`` of x along axis 0, at least one, and how many times as many there are in all: N / k."""
    count = x.shape[0]
    kept = max(1, int(count * share))
    if kept == count:
        return x, 1.0
    return x[:kept], count / kept


def dense_input(x):
    """Input rows [N, I] to features by rows [1, 1, N, I] and A's scale 1 / N."""
    rows, inputs = x.shape
    return reshaped(_cast(x, ms.float32), (1, 1, rows, inputs)), 1.0 / rows


def dense_output(g):
    """Output gradients [N, O] to features by rows [1, 1, N, O] and G's scale N."""
    rows, outputs = g.shape
    return reshaped(_cast(g, ms.float32), (1, 1, rows, outputs)), 1.0 * rows


def conv_input(x, geometry):
    """Input [B, C, H, W] to features [B, g, (C / g) k, P], or [1, g, ..., B P], and A's scale 1 / B.

    Coordinates stand in the order (channel, kernel position).
    """
    patches = geometry(_cast(x, ms.float32))
    return parts(patches, geometry.groups), 1.0 / patches.shape[0]


def conv_input_by_position(x, geometry):
    """As :func:`conv_input`, with coordinates in the order (kernel position, channel)."""
    patches = geometry(_cast(x, ms.float32))
    batch, coordinates, positions = patches.shape
    groups, area = geometry.groups, geometry.kernel[0] * geometry.kernel[1]
    ordered = swapped(patches, batch * groups, coordinates // (groups * area), area, positions)
    return parts(reshaped(ordered, patches.shape), groups), 1.0 / batch


def conv_output(g, groups):
    """Output gradients [B, O, H, W] to features [B, g, O / g, P], or [1, g, O / g, B P], and G's scale B / P."""
    batch, channels, height, width = g.shape
    positions = height * width
    return parts(reshaped(_cast(g, ms.float32), (batch, channels, positions)), groups), 1.0 * batch / positions


def parts(values, groups):
    """[B, C, P] as features: each example a part where it has many positions, else all rows in one part."""
    batch, channels, positions = values.shape
    if positions >= PART_POSITIONS:
        return reshaped(values, (batch, groups, channels // groups, positions))
    rows = swapped(values, 1, batch, channels, positions)
    return reshaped(rows, (1, groups, channels // groups, batch * positions))


def token_frequencies(ids, vocabulary):
    """Share of each token among ids [...], as diagonal blocks [1, V, 1, 1]: the A of an embedding."""
    flat = ids.reshape(-1)
    counts = ops.unsorted_segment_sum(ops.ones(flat.shape, ms.float32), flat, vocabulary)
    return (counts / flat.shape[0]).reshape(1, vocabulary, 1, 1)


def balance(rows, blocks, dim):
    """The scale s with which rows R s and columns C / s have one mean diagonal.

    A weight that is used twice, as an embedding and as a decoder, has F ~ R_1 x C_1 + R_2 x C_2. One pair of factors
    stands for the sum, (R_1 + R_2) x (C_1 + C_2), which is good only if the two uses share their scales out alike.
    """
    mean_rows, mean_columns = rows.mean(), traces(blocks).sum() / dim
    floor = ops.full_like(mean_rows, 1e-30)
    return ops.sqrt(ops.maximum(mean_columns, floor) / ops.maximum(mean_rows, floor))


def per_example(values, channel_last):
    """Sum a layer's values over everything but examples (axis 0) and channels: [B, C]."""
    if channel_last:
        return values.reshape(values.shape[0], -1, values.shape[-1]).sum(1)
    return values.reshape(values.shape[0], values.shape[1], -1).sum(-1)


def diagonal_fisher(gradients):
    """Diagonal blocks [1, C, 1, 1] of the empirical Fisher B sum_b g_b g_b^T, from per-example parts [B, C].

    With a mean loss L, B dL/dw's part of example b is the gradient of its own loss; their mean square is the Fisher.
    """
    batch, channels = gradients.shape
    return ((gradients * gradients).sum(0) * batch).reshape(1, channels, 1, 1)


def batch_normalized(x, epsilon):
    """X [B, C, ...] with mean 0 and variance 1 in each channel over examples and positions."""
    flat = x.astype(ms.float32).reshape(x.shape[0], x.shape[1], -1)
    centred = flat - flat.mean((0, 2), keep_dims=True)
    return (centred * ops.rsqrt((centred * centred).mean((0, 2), keep_dims=True) + epsilon)).reshape(x.shape)


def layer_normalized(x, epsilon):
    """X [..., C] with mean 0 and variance 1 along its last axis."""
    x = x.astype(ms.float32)
    centred = x - x.mean(-1, keep_dims=True)
    return centred * ops.rsqrt((centred * centred).mean(-1, keep_dims=True) + epsilon)


def behind(features, values):
    """Features [e, c, d, R] with constant coordinates behind the others: 1 for a bias, zeros that make blocks even."""
    count, copies, _, rows = features.shape
    return _behind((features, constants((count, copies, len(values), rows), values, 2)))


def behind_by_rows(features, values):
    """The same for features by rows, [1, 1, R, d]."""
    return _behind_by_rows((features, constants((1, 1, features.shape[2], len(values)), values, 3)))


def block_gram(features, scale, size, count):
    """The diagonal blocks [c, n, b, b] of scale * X X^T, for features [e, c, n b, R]."""
    many, copies, _, rows = features.shape
    blocks = reshaped(features, (-1, size, rows))
    sums = over_parts(reshaped(_gram(blocks, blocks), (many, -1)))
    return reshaped(sums * scale, (copies, count, size, size))


def block_gram_by_rows(features, scale, size, count):
    """The same for features by rows, [1, 1, R, n b]."""
    rows = features.shape[2]
    blocks = reshaped(swapped(features, 1, rows, count, size), (count, rows, size))
    return reshaped(_gram_by_rows(blocks, blocks) * scale, (1, count, size, size))


def diagonal(features, scale):
    """The diagonal [c, d, 1, 1] of scale * X X^T, for features [e, c, d, R]."""
    many, copies, dim, _ = features.shape
    sums = over_parts(reshaped(_sum(features * features, -1), (many, -1)))
    return reshaped(sums * scale, (copies, dim, 1, 1))


def diagonal_by_rows(features, scale):
    """The same for features by rows, [1, 1, R, d]."""
    return reshaped(_sum(features * features, 2) * scale, (1, features.shape[3], 1, 1))


def scaled_mean(features, scale):
    """U [c, d, 1] with scale * X X^T - u u^T positive semi-definite: u = sqrt(scale / R) * sum of rows.

    u u^T is R * scale times the outer product of the mean row, the largest share of the mean's direction that can be
    taken out (Jensen). For a dense layer's A it is the mean input itself.
    """
    many, copies, dim, each = features.shape
    sums = _product(reshaped(features, (-1, each)), constant((each, 1), 1.0))
    return reshaped(over_parts(reshaped(sums, (many, -1))) * root(scale, many * each), (copies, dim, 1))


def scaled_mean_by_rows(features, scale):
    """The same for features by rows, [1, 1, R, d]."""
    _, _, rows, dim = features.shape
    sums = _product(constant((1, rows), 1.0), reshaped(features, (rows, dim)))
    return reshaped(sums * root(scale, rows), (1, dim, 1))


def bias_mean(features, scale):
    """[c, 1, 1]: what :func:`scaled_mean` has for a coordinate that is 1 in all rows, sqrt(scale R)."""
    many, copies, _, each = features.shape
    return constant((copies, 1, 1), many * each * root(scale, many * each))


def bias_mean_by_rows(features, scale):
    """The same for features by rows, [1, 1, R, d]."""
    return constant((1, 1, 1), features.shape[2] * root(scale, features.shape[2]))


def root(scale, rows):
    """Sqrt(scale / rows)."""
    return (scale / rows) ** 0.5


def sketch(features, scale, probe):
    """Z = scale * X (X^T Q), [c, n b, r] for Q [c, n b, r]: the factor applied to Q without forming it."""
    each = ops.broadcast_to(probe.expand_dims(0), features.shape[:1] + probe.shape)
    z = _gram(features, _gram_by_rows(each, features))
    return reshaped(over_parts(reshaped(z, (features.shape[0], -1))) * scale, probe.shape)


def sketch_by_rows(features, scale, probe):
    """The same for features by rows, [1, 1, R, n b]."""
    transposed = reshaped(features, features.shape[1:])
    return _gram_by_rows(transposed, ops.bmm(transposed, probe)) * scale


def over_parts(values):
    """The sum of [e, m] over the parts, [1, m], by a product: MindSpore's CPU sums along the first axis slowly."""
    return _product(constant((1, values.shape[0]), 1.0), values)


def traces(blocks):
    """Tr of each copy's factor, [c], from its blocks [c, n, b, b]."""
    copies, count, size, _ = blocks.shape
    diagonal = ops.range(0, size * size, size + 1)
    return ops.gather(blocks.reshape(copies * count, size * size), diagonal, 1).reshape(copies, -1).sum(-1)
