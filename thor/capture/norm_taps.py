"""The tap of a normalisation layer's scale or shift (pair_taps.py). All its choices are made when it is built."""

from __future__ import annotations

from mindspore import nn

from thor.capture.pair_taps import PairTap
from thor.factors import formulas, norm_formulas
from thor.runtime.graph_ops import ones_of, shared, zeros_of


class OfShift(nn.Cell):
    """The gradient by a shift, from the output gradient: itself."""

    def construct(self, gradient, x):
        return gradient


class OfLayerScale(nn.Cell):
    """The gradient by a LayerNorm's scale: output gradient times normalised input, both [..., C]."""

    def __init__(self, epsilon: float):
        super().__init__(auto_prefix=False)
        self.epsilon = epsilon

    def construct(self, gradient, x):
        return gradient * norm_formulas.layer_normalized(x, self.epsilon)


class OfBatchScale(OfLayerScale):
    """As :class:`OfLayerScale`, of a BatchNorm, both [B, C, ...]."""

    def construct(self, gradient, x):
        return gradient * norm_formulas.batch_normalized(x, self.epsilon)


class OfGroupScale(nn.Cell):
    """As :class:`OfLayerScale`, of a GroupNorm or InstanceNorm, both [B, C, ...]."""

    def __init__(self, groups: int, epsilon: float):
        super().__init__(auto_prefix=False)
        self.groups, self.epsilon = groups, epsilon

    def construct(self, gradient, x):
        return gradient * norm_formulas.group_normalized(x, self.groups, self.epsilon)


class OfRows(nn.Cell):
    """The gradients of terms that are rows, [N, C] of [..., C], and the number of terms (LayerNorm, "expand")."""

    def __init__(self, rows: nn.Cell):
        super().__init__(auto_prefix=False)
        self.rows = rows

    def construct(self, gradient, dout):
        _, terms = self.rows(dout.reshape(-1, dout.shape[-1]))
        return gradient.reshape(-1, gradient.shape[-1]), terms


class OfExamples(nn.Cell):
    """The gradients of terms that are examples, [B, C], and the number of terms."""

    def __init__(self, rows: nn.Cell, channel_last: bool):
        super().__init__(auto_prefix=False)
        self.rows, self.channel_last = rows, channel_last

    def construct(self, gradient, dout):
        gradient = norm_formulas.per_example(gradient, self.channel_last)
        _, terms = self.rows(gradient)
        return gradient, terms


class NormTap(PairTap):
    """A: 1; G: the diagonal Fisher of a normalisation layer's scale or shift.

    ``norm`` is "layer", "batch" or "group". ``by_row``: every row is a term (LayerNorm, weight sharing "expand"); else
    every example is one.
    """

    def __init__(self, norm: str, is_scale: bool, epsilon: float, groups: int, rows: nn.Cell, by_row: bool):
        super().__init__()
        if not is_scale:
            self.by_weight = shared(OfShift)
        elif norm == "group":
            self.by_weight = shared(OfGroupScale, groups, epsilon)
        else:
            self.by_weight = shared(OfLayerScale if norm == "layer" else OfBatchScale, epsilon)
        self.by_term = shared(OfRows, rows) if by_row else shared(OfExamples, rows, norm == "layer")

    def bprop(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        gradient = self.by_weight(dout.astype(a_blocks.dtype), x)
        gradients, terms = self.by_term(gradient, dout)
        fisher = formulas.diagonal_fisher(gradients, terms)
        return (
            dout, zeros_of(x), ones_of(a_blocks), zeros_of(a_probe), ones_of(a_uses),
            fisher, zeros_of(g_probe), ones_of(g_uses),
        )  # fmt: skip
