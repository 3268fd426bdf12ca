"""What the Kronecker factors A and G of a layer are (pure functions of tensors, float32).

Every layer is brought to one form: *features* X [e, c, d, R], with c independent copies (groups of a convolution, else
1), d coordinates and e R rows (examples, or example-position pairs) in e parts, and a scale; the factor is scale times
the sum of X X^T over the parts. A convolution of many positions has each example as a part: gathering all rows in one
would copy the patches, which are its largest tensors by far. Of a dense layer they stay as they come, *by rows*: X^T
[1, 1, R, d]. Nothing is transposed that can do without: see ``thor.compiled.swapped``.

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

from thor.compiled import swapped

#: Positions from which on each example is a part: of fewer, the products are larger than what they are made of.
PART_POSITIONS = 128


def first_examples(x, share):
    """The first ``share`` of x along axis 0, at least one, and how many times as many there are in all: N / k."""
    count = x.shape[0]
    kept = max(1, int(count * share))
    if kept == count:
        return x, 1.0
    return x[:kept], count / kept


def dense_input(x, homogeneous):
    """Input rows [N, I] to features by rows [1, 1, N, I (+1)] and A's scale 1 / N."""
    rows = x.shape[0]
    features = x.astype(ms.float32).reshape(1, 1, rows, x.shape[1])
    return append_ones(features, homogeneous, True), 1.0 / rows


def dense_output(g):
    """Output gradients [N, O] to features by rows [1, 1, N, O] and G's scale N."""
    rows = g.shape[0]
    return g.astype(ms.float32).reshape(1, 1, rows, g.shape[1]), 1.0 * rows


def conv_input(x, geometry, homogeneous, by_position=False):
    """Input [B, C, H, W] to features [B, g, (C / g) k (+1), P], or [1, g, ..., B P], and A's scale 1 / B.

    Coordinates stand in the order (channel, kernel position), or (kernel position, channel) ``by_position``.
    """
    patches = geometry(x.astype(ms.float32))
    batch, coordinates, positions = patches.shape
    groups, area = geometry.groups, geometry.kernel[0] * geometry.kernel[1]
    if by_position:
        patches = swapped(patches, batch * groups, coordinates // (groups * area), area, positions)
        patches = patches.reshape(batch, coordinates, positions)
    return append_ones(parts(patches, groups), homogeneous), 1.0 / batch


def conv_output(g, groups):
    """Output gradients [B, O, H, W] to features [B, g, O / g, P], or [1, g, O / g, B P], and G's scale B / P."""
    batch, channels, height, width = g.shape
    positions = height * width
    values = g.astype(ms.float32).reshape(batch, channels, positions)
    return parts(values, groups), 1.0 * batch / positions


def parts(values, groups):
    """[B, C, P] as features: each example a part where it has many positions, else all rows in one part."""
    batch, channels, positions = values.shape
    if positions >= PART_POSITIONS:
        return values.reshape(batch, groups, channels // groups, positions)
    return swapped(values, 1, batch, channels, positions).reshape(1, groups, channels // groups, batch * positions)


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


def append_ones(features, homogeneous, by_rows=False):
    """Add the bias's coordinate, constant 1, behind the others."""
    if not homogeneous:
        return features
    return behind(features, 1, 1.0, by_rows)


def pad_features(features, padded, by_rows=False):
    """Zero coordinates behind the others up to ``padded``, so that blocks are even."""
    missing = padded - features.shape[3 if by_rows else 2]
    if missing == 0:
        return features
    return behind(features, missing, 0.0, by_rows)


def behind(features, more, value, by_rows):
    """So many coordinates of one value behind those of the features."""
    count, copies, before, last = features.shape
    if by_rows:
        return ops.cat((features, ops.full((count, copies, before, more), value, dtype=ms.float32)), 3)
    return ops.cat((features, ops.full((count, copies, more, last), value, dtype=ms.float32)), 2)


def over_parts(values):
    """The sum of [e, ...] over the parts, by a product: MindSpore's CPU sums along the first axis slowly.

    Of one part by a reshape, which copies nothing: an index is slow to run.
    """
    count = values.shape[0]
    if count == 1:
        return values.reshape(values.shape[1:])
    return ops.matmul(ops.ones((1, count), ms.float32), values.reshape(count, -1)).reshape(values.shape[1:])


def block_gram(features, scale, size, count, by_rows=False):
    """The diagonal blocks [c, n, b, b] of scale * X X^T for padded features [e, c, n b, R], or [1, c, R, n b]."""
    if by_rows:
        return block_gram_by_rows(features, size, count) * scale
    many, copies, _, rows = features.shape
    if size == 1:
        return (over_parts((features * features).sum(-1)) * scale).reshape(copies, count, 1, 1)
    blocks = features.reshape(many * copies * count, size, rows)
    gram = ops.BatchMatMul(transpose_b=True)(blocks, blocks)
    return over_parts(gram.reshape(many, copies, count, size, size)) * scale


def block_gram_by_rows(features, size, count):
    """The diagonal blocks [c, n, b, b] of X X^T, X^T being [1, c, R, n b]."""
    _, copies, rows, _ = features.shape
    if size == 1:
        return (features * features).sum(-2).reshape(copies, count, 1, 1)
    blocks = features
    if count > 1:
        blocks = swapped(features, copies, rows, count, size)
    blocks = blocks.reshape(copies * count, rows, size)
    return ops.BatchMatMul(transpose_a=True)(blocks, blocks).reshape(copies, count, size, size)


def scaled_mean(features, scale, bias_apart=False, by_rows=False):
    """U [c, n b (+1), 1] with scale * X X^T - u u^T positive semi-definite: u = sqrt(scale / R) * sum of rows.

    u u^T is R * scale times the outer product of the mean row, the largest share of the mean's direction that can be
    taken out (Jensen). For a dense layer's A it is the mean input itself. With ``bias_apart`` the features have no
    coordinate for the bias, and the mean of its constant 1, sqrt(scale R), is added behind theirs.
    """
    many, copies, dim, each = features.shape
    if by_rows:
        dim, each = each, dim
        sums = ops.matmul(ops.ones((1, 1, each), ms.float32), features.reshape(copies, each, dim))
        sums = sums.reshape(copies, dim, 1)
    else:
        sums = ops.matmul(features.reshape(-1, each), ops.ones((each, 1), ms.float32))
        sums = over_parts(sums.reshape(many, copies, dim, 1))
    rows = many * each
    mean = sums * (scale / rows) ** 0.5
    if not bias_apart:
        return mean
    return ops.cat((mean, ops.full((copies, 1, 1), (scale * rows) ** 0.5, dtype=ms.float32)), 1)


def sketch(features, scale, probe, by_rows=False):
    """Z = scale * X (X^T Q), [c, n b, r] for Q [c, n b, r]: the factor applied to Q without forming it."""
    if by_rows:
        transposed = features.reshape(features.shape[1:])
        return ops.BatchMatMul(transpose_a=True)(transposed, ops.bmm(transposed, probe)) * scale
    each = probe.expand_dims(0).broadcast_to(features.shape[:1] + probe.shape)
    rows = ops.BatchMatMul(transpose_a=True)(each, features)
    return over_parts(ops.BatchMatMul(transpose_b=True)(features, rows)) * scale


def bias_trace(beside, uses):
    """The bias's share of each copy's trace, [c], where it stands apart: the square of its entry of the mean."""
    entry = beside.reshape(beside.shape[0], -1)[:, -1]
    return entry * entry / ops.maximum(uses, ops.ones_like(uses))


def traces(blocks):
    """Tr of each copy's factor, [c], from its blocks [c, n, b, b]."""
    copies, count, size, _ = blocks.shape
    diagonal = ops.range(0, size * size, size + 1)
    return ops.gather(blocks.reshape(copies * count, size * size), diagonal, 1).reshape(copies, -1).sum(-1)
