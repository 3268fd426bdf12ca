"""``nn.MultiheadAttention`` with ports at its projections.

MindSpore's attention multiplies by the weights of its projections itself, also by that of the Cell ``out_proj``, which
it never calls. A captured attention therefore runs a ``construct`` of its own, which computes the same. With the heads
h of d entries each, the masks m and the projections

    q = x_q W_q^T + b_q,    k = x_k W_k^T + b_k,    v = x_v W_v^T + b_v,

it returns

    concat_h(softmax(q_h k_h^T / sqrt(d) + m) v_h) W_out^T + b_out.

W_q, W_k and W_v are thirds of one weight [3 E, E], or weights of their own if keys or values have another width. The
weight in thirds is one dense layer of three copies, like a convolution of three groups: each third has its own input,
its own number of rows, and factors of its own. So cross attention has the right factors too, and each third has its own
scale; the products between gradients of two thirds, which one G of 3 E rows would hold, are left out.

The softmax does not change where all scores of a query change alike, so that the gradients of an example's keys k sum
to zero. With weight sharing "reduce", which takes G from this sum, the keys are therefore "pooled".
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, nn, ops

from thor.capture.pair_taps import AsRows, PairPort, PairTap, RowsPort, RowsTap
from thor.factors.statistics import Statistics
from thor.runtime.graph_ops import after, reshaped, shared, zeros_of

#: Where the ports of a captured attention are: "thor_input" is that of the weight in thirds.
SLOTS = ("thor_input", "thor_query", "thor_key", "thor_value", "thor_output")
_SLOT_OF = {
    "in_proj_weight": "thor_input", "q_proj_weight": "thor_query", "k_proj_weight": "thor_key",
    "v_proj_weight": "thor_value",
}  # fmt: skip

#: The statistics of A and of G.
Pair = tuple[Statistics, Statistics]
_product, _thirds = ops.MatMul(transpose_b=True), ops.Split(0, 3)
_scores, _values = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
_joined, _cast = ops.Concat(0), ops.Cast()


class AsRowsOfExamples(nn.Cell):
    """[T, B, d] as rows [B T, d], those of one example after another."""

    def construct(self, x):
        return x.swapaxes(0, 1).reshape(-1, x.shape[-1])


class OfThirds(nn.Cell):
    """The statistics of a factor of three copies, each from an input or an output gradient of its own.

    ``thin`` says that the factor has a scaled mean or a low-rank part.
    """

    def __init__(self, statistics: Statistics, of_keys: Statistics, thin: bool):
        super().__init__(auto_prefix=False)
        self.statistics, self.of_keys, self.thin = statistics, of_keys, thin

    def construct(self, q, k, v, valid_q, valid_k, valid_v, probe):
        of_q = of_k = of_v = probe
        if self.thin:
            of_q, of_k, of_v = _thirds(probe)
        q, beside_q, one = self.statistics(q, valid_q, of_q)
        k, beside_k, _ = self.of_keys(k, valid_k, of_k)
        v, beside_v, _ = self.statistics(v, valid_v, of_v)
        beside = _joined((beside_q, beside_k, beside_v)) if self.thin else beside_q
        return _joined((q, k, v)), beside, one


class ThirdsTap(PairTap):
    """Identity on (q, k, v); ``bprop`` returns the statistics of A and G of the weight in thirds."""

    def __init__(self, inputs: OfThirds, outputs: OfThirds, rows: nn.Cell, shape: nn.Cell):
        super().__init__()
        self.inputs, self.outputs, self.rows, self.shape = inputs, outputs, rows, shape

    def construct(self, q, k, v, x_q, x_k, x_v, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses):
        later = (k, v, x_q, x_k, x_v, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses)
        return after(q, later), k, v

    def bprop(self, q, k, v, x_q, x_k, x_v, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        g_q, g_k, g_v = self.shape(dout[0]), self.shape(dout[1]), self.shape(dout[2])
        (of_q, _), (of_k, _), (of_v, _) = self.rows(g_q), self.rows(g_k), self.rows(g_v)
        a, a_beside, one = self.inputs(self.shape(x_q), self.shape(x_k), self.shape(x_v), of_q, of_k, of_v, a_probe)
        g, g_beside, _ = self.outputs(g_q, g_k, g_v, of_q, of_k, of_v, g_probe)
        return (
            dout[0], dout[1], dout[2], zeros_of(x_q), zeros_of(x_k), zeros_of(x_v),
            a, a_beside, one, g, g_beside, one,
        )  # fmt: skip


class ThirdsPort(PairPort):
    """The port of the weight in thirds, between its outputs and the rest, with its inputs."""

    def construct(self, q, k, v, x_q, x_k, x_v):
        if self.active:
            x_q, x_k, x_v = ops.stop_gradient(x_q), ops.stop_gradient(x_k), ops.stop_gradient(x_v)
            q, k, v = self.tap(
                q, k, v, x_q, x_k, x_v,
                self.a_blocks, self.a_probe, self.a_uses, self.g_blocks, self.g_probe, self.g_uses,
            )  # fmt: skip
        return q, k, v


def slot_of(cell: nn.MultiheadAttention, weight: Parameter) -> str:
    """The slot of the port of one of an attention's weights."""
    return next((slot for name, slot in _SLOT_OF.items() if getattr(cell, name) is weight), "thor_output")


def port_of(
    cell: nn.MultiheadAttention, slot: str, statistics: Pair, of_keys: Pair, rows: nn.Cell, by_example: bool,
    a_parameters, g_parameters,
) -> PairPort:  # fmt: skip
    """The port for one of an attention's slots.

    ``statistics`` are those of A and of G of one copy, ``of_keys`` the same for the projection of keys. ``rows`` tells
    which rows count. ``by_example`` says that the statistics need the rows of an example together.
    """
    shape = shared(AsRowsOfExamples if by_example and not cell.batch_first else AsRows)
    if slot != "thor_input":
        own = of_keys if slot == "thor_key" else statistics
        return RowsPort(shared(RowsTap, *own, rows, shape, shape), a_parameters, g_parameters)
    thin = (len(probe.shape) == 3 for _, probe, _ in (a_parameters, g_parameters))
    thirds = (shared(OfThirds, *each) for each in zip(statistics, of_keys, thin, strict=True))
    return ThirdsPort(shared(ThirdsTap, *thirds, rows, shape), a_parameters, g_parameters)


def affine(x, weight, bias):
    """The product x W^T, plus b unless it is None, for the last axis of x [., ., I], in its type."""
    first, second, inputs = x.shape
    y = _product(reshaped(x, (-1, inputs)), _cast(weight, x.dtype))
    if bias is not None:
        y = y + _cast(bias, x.dtype)
    return reshaped(y, (first, second, weight.shape[0]))


def mask_of_pairs(mask, batch, heads, queries, keys):
    """``attn_mask`` [L, S] or [B H, L, S] as [1, 1, L, S] or [B, H, L, S]."""
    if mask.dtype == ms.uint8:
        mask = mask.astype(ms.bool_)
    if mask.dtype != ms.bool_ and not ops.is_floating_point(mask):
        raise ValueError(f"attn_mask must be of a float type, bool or uint8, but got {mask.dtype}")
    if mask.shape == (queries, keys):
        return reshaped(mask, (1, 1, queries, keys))
    if mask.shape != (batch * heads, queries, keys):
        raise ValueError(f"attn_mask must be {(queries, keys)} or {(batch * heads, queries, keys)}, got {mask.shape}")
    return reshaped(mask, (batch, heads, queries, keys))


def mask_of_keys(mask, batch, keys):
    """``key_padding_mask`` [B, S] as [B, 1, 1, S]."""
    if mask.dtype != ms.bool_ and not ops.is_floating_point(mask):
        raise ValueError(f"key_padding_mask must be of a float type or bool, but got {mask.dtype}")
    if mask.shape != (batch, keys):
        raise ValueError(f"key_padding_mask must be {(batch, keys)}, but got {mask.shape}")
    return reshaped(mask, (batch, 1, 1, keys))


def both_masks(of_pairs, of_keys):
    """The two masks in one: truth values are joined; where the first holds numbers, MindSpore adds the second."""
    return of_pairs.logical_or(of_keys) if of_pairs.dtype == ms.bool_ else of_pairs + of_keys


def masked(scores, mask):
    """Scores with numbers added, or with -inf where a mask of truth values is True."""
    if mask.dtype == ms.bool_:
        mask = ops.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, float("-inf"))
    return scores + mask


class TappedAttention(nn.MultiheadAttention):
    """``nn.MultiheadAttention`` with ports at its projections. Made by class assignment, never constructed."""

    def __call__(self, *args, **kwargs):
        # without the flags that MindSpore sets for its own construct, a change of which would compile a step anew
        return nn.Cell.__call__(self, *args, **kwargs)

    def construct(
        self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None, average_attn_weights=True
    ):
        example = 0 if self.batch_first else 1
        alone = query.ndim == 2
        if alone:
            query, key, value = query.expand_dims(example), key.expand_dims(example), value.expand_dims(example)
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.expand_dims(0)
        q, k, v = self.thor_projected(query, key, value)
        q, k, v = self.thor_in_heads(q), self.thor_in_heads(k), self.thor_in_heads(v)
        output, weights = self.thor_attended(q, k, v, key_padding_mask, attn_mask)
        output = self.thor_projected_back(output)
        if alone:
            output = output.squeeze(example)
        if not need_weights:
            return (output,)
        if average_attn_weights:
            weights = weights.sum(axis=1) / self.num_heads
        return output, weights.squeeze(0) if alone else weights

    def thor_projected(self, query, key, value):
        """(q, k, v), by projections and their ports."""
        w_q, w_k, w_v = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        if self.in_proj_weight is not None:
            w_q, w_k, w_v = _thirds(self.in_proj_weight)
        b_q, b_k, b_v = None, None, None
        if self.in_proj_bias is not None:
            b_q, b_k, b_v = _thirds(self.in_proj_bias)
        q, k, v = affine(query, w_q, b_q), affine(key, w_k, b_k), affine(value, w_v, b_v)
        if self.thor_input is not None:
            q, k, v = self.thor_input(q, k, v, query, key, value)
        if self.thor_query is not None:
            q = self.thor_query(q, query)
        if self.thor_key is not None:
            k = self.thor_key(k, key)
        if self.thor_value is not None:
            v = self.thor_value(v, value)
        return q, k, v

    def thor_in_heads(self, x):
        """[B, T, E], or [T, B, E], as [B, H, T, d]."""
        x = reshaped(x, (x.shape[0], x.shape[1], self.num_heads, self.head_dim))
        return x.transpose(0, 2, 1, 3) if self.batch_first else x.transpose(1, 2, 0, 3)

    def thor_attended(self, q, k, v, key_padding_mask, attn_mask):
        """What the heads return [B, H, L, d], and the weights of the keys [B, H, L, S]."""
        batch, heads, queries, width = q.shape
        keys = k.shape[2]
        root = width**-0.25  # each side by its own, so that float16 holds the products
        scores = _scores(q * root, k * root)
        if attn_mask is not None:
            mask = mask_of_pairs(attn_mask, batch, heads, queries, keys)
            if key_padding_mask is not None:
                mask = both_masks(mask, mask_of_keys(key_padding_mask, batch, keys))
            scores = masked(scores, mask)
        elif key_padding_mask is not None:
            scores = masked(scores, mask_of_keys(key_padding_mask, batch, keys))
        weights = ops.softmax(scores, -1)
        if self.training and self.dropout > 0.0:
            weights = ops.dropout(weights, p=self.dropout)
        return _values(weights, v), weights

    def thor_projected_back(self, x):
        """The heads' outputs side by side, [B, L, E] or [L, B, E], and their projection."""
        x = x.transpose(0, 2, 1, 3) if self.batch_first else x.transpose(2, 0, 1, 3)
        x = reshaped(x, (x.shape[0], x.shape[1], self.embed_dim))
        y = affine(x, self.out_proj.weight, self.out_proj.bias)
        if self.thor_output is not None:
            y = self.thor_output(y, x)
        return y
