"""Taps that need a layer's input and its output gradient together: embeddings, normalisation, tied decoders.

The layer's own computation runs first, unchanged, whatever its class. Then a tap, the identity on the output, receives
the output and the input, and returns the statistics of both factors from one ``bprop`` (taps.py explains the idea).
"""

from __future__ import annotations

import inspect
import types

from mindspore import nn, ops

from thor.factors import formulas
from thor.factors.statistics import Statistics


class PairPort(nn.Cell):
    """Holds a pair tap and (blocks, probe, uses) of A and of G; ``active`` as in :class:`thor.capture.taps.Port`."""

    def __init__(self, tap: PairTap, a_parameters, g_parameters):
        super().__init__(auto_prefix=False)
        self.tap = tap
        self.a_blocks, self.a_probe, self.a_uses = a_parameters
        self.g_blocks, self.g_probe, self.g_uses = g_parameters
        self.active = False

    def construct(self, y, x):
        if self.active:
            return self.tap(y, x, self.a_blocks, self.a_probe, self.a_uses, self.g_blocks, self.g_probe, self.g_uses)
        return y


class PairTap(nn.Cell):
    """Identity on a layer's output y; ``bprop`` returns the statistics of A and G as gradients of their Parameters."""

    def __init__(self):
        super().__init__(auto_prefix=False)

    def construct(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses):
        return y


class EmbeddingTap(PairTap):
    """A: the token frequencies; G: as of a dense layer with one-hot inputs."""

    def __init__(self, vocabulary: int, outputs: Statistics):
        super().__init__()
        self.vocabulary, self.outputs = vocabulary, outputs

    def bprop(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        blocks, beside, one = self.outputs(dout.reshape(-1, dout.shape[-1]), g_probe)
        frequencies = formulas.token_frequencies(x, self.vocabulary)
        return dout, ops.zeros_like(x), frequencies, ops.zeros_like(a_probe), one, blocks, beside, one


class NormTap(PairTap):
    """A: 1; G: the diagonal Fisher of a normalisation layer's scale or shift."""

    def __init__(self, kind: str, is_scale: bool, epsilon: float):
        super().__init__()
        self.channel_last, self.is_scale, self.epsilon = kind == "layer", is_scale, epsilon

    def bprop(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        gradient = dout.astype(a_blocks.dtype)
        if self.is_scale:
            if self.channel_last:
                gradient = gradient * formulas.layer_normalized(x, self.epsilon)
            else:
                gradient = gradient * formulas.batch_normalized(x, self.epsilon)
        fisher = formulas.diagonal_fisher(formulas.per_example(gradient, self.channel_last))
        return (
            dout, ops.zeros_like(x), ops.ones_like(a_blocks), ops.zeros_like(a_probe), ops.ones_like(a_uses),
            fisher, ops.zeros_like(g_probe), ops.ones_like(g_uses),
        )  # fmt: skip


class TiedEmbeddingTap(PairTap):
    """As :class:`EmbeddingTap`, for a table that is also a decoder's weight: balanced (see ``formulas.balance``)."""

    def __init__(self, vocabulary: int, outputs: Statistics):
        super().__init__()
        self.vocabulary, self.outputs = vocabulary, outputs

    def bprop(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        blocks, beside, one = self.outputs(dout.reshape(-1, dout.shape[-1]), g_probe)
        rows = formulas.token_frequencies(x, self.vocabulary)
        scale = formulas.balance(rows, blocks, dout.shape[-1])
        return dout, ops.zeros_like(x), rows * scale, ops.zeros_like(a_probe), one, blocks / scale, beside / scale, one


class TiedDecoderTap(PairTap):
    """A decoder x W^T whose weight is an embedding's table [V, D].

    The diagonal of the decoder's G serves as the table's A, and the decoder's A as the table's G; both are balanced.
    """

    def __init__(self, inputs: Statistics):
        super().__init__()
        self.inputs = inputs

    def bprop(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        blocks, beside, one = self.inputs(x.reshape(-1, x.shape[-1]), g_probe)
        gradients = dout.reshape(-1, dout.shape[-1]).astype(a_blocks.dtype)
        rows = formulas.diagonal_fisher(gradients)
        scale = formulas.balance(rows, blocks, x.shape[-1])
        return dout, ops.zeros_like(x), rows * scale, ops.zeros_like(a_probe), one, blocks / scale, beside / scale, one


class TappedPair(nn.Cell):
    """Any layer: its own ``construct``, then its ports. Made by class assignment, never constructed."""

    def construct(self, x):
        return self.thor_tapped(x)

    def thor_tapped(self, x):
        y = self.thor_plain(x)
        if self.thor_scale is not None:
            y = self.thor_scale(y, x)
        if self.thor_shift is not None:
            y = self.thor_shift(y, x)
        return y


class TappedEmbedding(TappedPair):
    """A :class:`TappedPair` whose input is named as in ``nn.Embedding``, for calls by keyword."""

    def construct(self, ids):
        return self.thor_tapped(ids)


class TappedNorm(TappedPair):
    """A :class:`TappedPair` whose input is named as in ``nn.LayerNorm``."""

    def construct(self, input_x):
        return self.thor_tapped(input_x)


def tapped_pair(original: type) -> type[TappedPair]:
    """The :class:`TappedPair` whose input is named as in the layer's own ``construct``."""
    (_, first, *_) = inspect.signature(original.construct).parameters  # type: ignore[attr-defined]
    return {"ids": TappedEmbedding, "input_x": TappedNorm}.get(first, TappedPair)


def plain(cell: nn.Cell, original: type) -> types.MethodType:
    """The layer's own ``construct``, bound to it: compiled in a class made at run time, ``super()`` finds itself."""
    return types.MethodType(original.construct, cell)  # type: ignore[attr-defined]
