"""Taps that need a layer's input and its output gradient together: embeddings, normalisation, tied decoders.

The layer's own computation runs first, unchanged, whatever its class. Then a tap, the identity on the output, receives
the output and the input, and returns the statistics of both factors from one ``bprop`` (taps.py explains the idea).
"""

from __future__ import annotations

import inspect
import types

from mindspore import Parameter, nn, ops

from thor.factors import formulas
from thor.factors.statistics import Statistics
from thor.runtime.graph_ops import after, first_entries, reshaped, zeros_of


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
        return after(y, (x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses))


class RowsPort(PairPort):
    """A :class:`PairPort` of a layer whose input x has a gradient, to which the tap adds nothing."""

    def construct(self, y, x):
        if self.active:
            x = ops.stop_gradient(x)
            return self.tap(y, x, self.a_blocks, self.a_probe, self.a_uses, self.g_blocks, self.g_probe, self.g_uses)
        return y


class AsRows(nn.Cell):
    """[..., d] as rows [N, d]."""

    def construct(self, x):
        return x.reshape(-1, x.shape[-1])


class AsImages(nn.Cell):
    """[B, C, H, W] and [B, C, D, H, W] as they are, and [B, C, L] as images of one row."""

    def construct(self, x):
        return reshaped(x, _shape_of_images(x.shape))


@ops.constexpr
def _shape_of_images(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape


class ChannelsFirst(nn.Cell):
    """[B, H, W, C] as [B, C, H, W]."""

    def construct(self, x):
        return x.transpose(0, 3, 1, 2)


class WithoutLast(nn.Cell):
    """[B, C, H, W] without its last rows and columns, which ``nn.Conv2dTranspose`` appends as zeros."""

    def __init__(self, rows: int, columns: int):
        super().__init__(auto_prefix=False)
        self.rows, self.columns = rows, columns

    def construct(self, x):
        batch, channels, rows, columns = x.shape
        return first_entries(x, (batch, channels, rows - self.rows, columns - self.columns))


class PlanesJoined(nn.Cell):
    """[B, C, D, H, W] as images [B, C, D H, W]."""

    def construct(self, x):
        return x.reshape(x.shape[0], x.shape[1], -1, x.shape[4])


class RowsTap(PairTap):
    """A dense layer or a convolution, from its input and its output gradient.

    ``rows`` tells which rows count. ``of_input`` and ``of_output`` give input and gradient the shape that the
    statistics take.
    """

    def __init__(self, inputs: Statistics, outputs: Statistics, rows: nn.Cell, of_input: nn.Cell, of_output: nn.Cell):
        super().__init__()
        self.inputs, self.outputs, self.rows = inputs, outputs, rows
        self.of_input, self.of_output = of_input, of_output

    def bprop(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        return (dout, zeros_of(x)) + self.gathered(x, self.of_output(dout), a_probe, g_probe)

    def gathered(self, x, gradient, a_probe, g_probe):
        """The statistics of A and of G, from the input and from the output's gradient in its form."""
        valid, _ = self.rows(gradient)
        a, a_beside, one = self.inputs(self.of_input(x), valid, a_probe)
        g, g_beside, _ = self.outputs(gradient, valid, g_probe)
        return a, a_beside, one, g, g_beside, one


class StandardizedPort(RowsPort):
    """A :class:`RowsPort` of a convolution that standardises its weights (``formulas.centred``)."""

    def __init__(self, tap: StandardizedTap, weight: Parameter, a_parameters, g_parameters):
        super().__init__(tap, a_parameters, g_parameters)
        self.weight = weight

    def construct(self, y, x):
        if self.active:
            deviations = formulas.deviations(ops.stop_gradient(self.weight))
            x = ops.stop_gradient(x)
            return self.tap(
                y, x, deviations, self.a_blocks, self.a_probe, self.a_uses, self.g_blocks, self.g_probe, self.g_uses
            )
        return y


class StandardizedTap(RowsTap):
    """As :class:`RowsTap`, with the gradient of each output divided by the deviation of its weights."""

    def construct(self, y, x, deviations, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses):
        return after(y, (x, deviations, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses))

    def bprop(self, y, x, deviations, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        gradient = self.of_output(dout) / deviations.reshape(1, -1, 1, 1)
        return (dout, zeros_of(x), zeros_of(deviations)) + self.gathered(x, gradient, a_probe, g_probe)


class EmbeddingTap(PairTap):
    """A: the token frequencies; G: as of a dense layer with one-hot inputs."""

    def __init__(self, vocabulary: int, outputs: Statistics, rows: nn.Cell):
        super().__init__()
        self.vocabulary, self.outputs, self.rows = vocabulary, outputs, rows

    def bprop(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        gradients = dout.reshape(-1, dout.shape[-1])
        valid, _ = self.rows(gradients)
        blocks, beside, one = self.outputs(gradients, valid, g_probe)
        frequencies = formulas.token_frequencies(x, self.vocabulary, valid)
        return dout, zeros_of(x), frequencies, zeros_of(a_probe), one, blocks, beside, one


class TiedTap(PairTap):
    """A table [V, D] that is used twice, as an embedding and as a decoder's weight.

    The table's A is a diagonal over its rows, its G a factor of its columns. Both are balanced (``formulas.balance``).
    The Fisher's trace of each use takes the place of the count of G's uses, for the traces of the sums over the uses do
    not multiply to it.
    """

    def returned(self, x, dout, a_probe, rows, blocks, beside, one, width):
        """What ``bprop`` returns, for the table's rows and the blocks and beside of its columns."""
        trace = rows.sum() * formulas.traces(blocks).sum()
        scale = formulas.balance(rows, blocks, width)
        return (
            dout, zeros_of(x), rows * scale, zeros_of(a_probe), one,
            blocks / scale, beside / scale, one * trace,
        )  # fmt: skip


class TiedEmbeddingTap(TiedTap):
    """The embedding's use: token frequencies, and G as of a dense layer with one-hot inputs."""

    def __init__(self, vocabulary: int, outputs: Statistics, rows: nn.Cell):
        super().__init__()
        self.vocabulary, self.outputs, self.rows = vocabulary, outputs, rows

    def bprop(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        gradients = dout.reshape(-1, dout.shape[-1])
        valid, _ = self.rows(gradients)
        blocks, beside, one = self.outputs(gradients, valid, g_probe)
        rows = formulas.token_frequencies(x, self.vocabulary, valid)
        return self.returned(x, dout, a_probe, rows, blocks, beside, one, dout.shape[-1])


class TiedDecoderTap(TiedTap):
    """The use as a decoder x W^T: the diagonal of its G belongs to the rows, its A to the columns."""

    def __init__(self, inputs: Statistics, rows: nn.Cell):
        super().__init__()
        self.inputs, self.rows = inputs, rows

    def bprop(self, y, x, a_blocks, a_probe, a_uses, g_blocks, g_probe, g_uses, out, dout):
        gradients = dout.reshape(-1, dout.shape[-1]).astype(a_blocks.dtype)
        valid, terms = self.rows(gradients)
        blocks, beside, one = self.inputs(x.reshape(-1, x.shape[-1]), valid, g_probe)
        rows = formulas.diagonal_fisher(gradients, terms)
        return self.returned(x, dout, a_probe, rows, blocks, beside, one, x.shape[-1])


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


class TappedExtended(TappedPair):
    """A :class:`TappedPair` whose input is named as in the layers of ``mint.nn``."""

    def construct(self, input):
        return self.thor_tapped(input)


def tapped_pair(original: type) -> type[TappedPair]:
    """The :class:`TappedPair` whose input is named as in the layer's own ``construct``."""
    (_, first, *_) = inspect.signature(original.construct).parameters  # type: ignore[attr-defined]
    return {"ids": TappedEmbedding, "input_x": TappedNorm, "input": TappedExtended}.get(first, TappedPair)


def plain(cell: nn.Cell, original: type) -> types.MethodType:
    """The layer's own ``construct``, bound to it: compiled in a class made at run time, ``super()`` finds itself."""
    return types.MethodType(original.construct, cell)  # type: ignore[attr-defined]
