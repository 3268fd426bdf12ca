"""Convolution as a product of patches and weights: geometry, patches, and a forward pass that computes this way.

Shapes: B examples, C input channels, O output channels, H x W pixels, k = kh * kw kernel positions, P output positions.
The coordinates of a patch are ordered (channel, kernel row, kernel column), as in the weight [O, C / groups, kh, kw].
"""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import nn, ops

from first_order.cells import delete_unregistered, set_unregistered
from thor.runtime.graph_ops import shared


class Geometry(nn.Cell):
    """Geometry of a convolution: kernel, stride, dilation, groups and padding (top, bottom, left, right).

    It is a Cell only so that its numbers are constants of a compiled graph.
    """

    def __init__(
        self, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], groups: int, pad_mode: str,
        pads: tuple[int, int, int, int],
    ):  # fmt: skip
        super().__init__(auto_prefix=False)
        self.kernel, self.stride, self.dilation, self.groups = kernel, stride, dilation, groups
        self.pad_mode, self.pads = pad_mode, pads

    def padding(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Padding (top, bottom, left, right) of an input of ``height`` x ``width``, in MindSpore's three pad modes."""
        if self.pad_mode == "valid":
            return (0, 0, 0, 0)
        if self.pad_mode == "pad":
            return self.pads
        rows = same_padding(height, self.kernel[0], self.stride[0], self.dilation[0])
        columns = same_padding(width, self.kernel[1], self.stride[1], self.dilation[1])
        return rows + columns

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        top, bottom, left, right = self.padding(height, width)
        rows = output_length(height + top + bottom, self.kernel[0], self.stride[0], self.dilation[0])
        columns = output_length(width + left + right, self.kernel[1], self.stride[1], self.dilation[1])
        return rows, columns

    def construct(self, x):
        """Patches [B, C k, P] of x [B, C, H, W]."""
        batch, channels, height, width = x.shape
        if self.kernel == (1, 1) and self.stride == (1, 1) and self.padding(height, width) == (0, 0, 0, 0):
            return x.reshape(batch, channels, height * width)
        top, bottom, left, right = self.padding(height, width)
        if top == bottom and left == right:
            return ops.unfold(x, self.kernel, self.dilation, (top, left), self.stride)
        x = ops.pad(x, (left, right, top, bottom))
        return ops.unfold(x, self.kernel, self.dilation, (0, 0), self.stride)


def groups_of(conv: nn.Cell) -> int:
    """The number of groups of a convolution of ``nn`` or of ``mint.nn``."""
    return int(conv.groups if hasattr(conv, "groups") else conv.group)


def geometry_of(conv: nn.Cell) -> Geometry:
    """The geometry of a convolution over one or two axes. Layers of equal geometry share one object."""
    sizes = [_last_two(each) for each in (conv.kernel_size, conv.stride, conv.dilation)]
    if isinstance(conv, nn.Conv1d):
        sizes = [(1, each[-1]) for each in sizes]
    return shared(Geometry, *sizes, groups_of(conv), *_pads_of(conv))


def _pads_of(conv: nn.Cell) -> tuple[str, tuple[int, int, int, int]]:
    """Pad mode and padding (top, bottom, left, right)."""
    if hasattr(conv, "pad_mode"):
        pads = (conv.padding,) * 4 if isinstance(conv.padding, int) else tuple(conv.padding)
        if isinstance(conv, nn.Conv1d) and conv.pad_mode == "pad":
            pads = (0, 0, *pads[-2:])
        return conv.pad_mode, pads
    if isinstance(conv.padding, str):  # of mint.nn
        return conv.padding, (0, 0, 0, 0)
    rows, columns = _last_two(conv.padding)
    return "pad", (rows, rows, columns, columns)


def _last_two(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)[-2:]


def same_padding(length: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Padding (before, after) of pad_mode "same": ceil(length / stride) outputs; an odd padding has more after."""
    outputs = (length + stride - 1) // stride
    total = (outputs - 1) * stride + dilation * (kernel - 1) + 1 - length
    total = total if total > 0 else 0
    return total // 2, total - total // 2


def output_length(padded: int, kernel: int, stride: int, dilation: int) -> int:
    """Number of outputs along an axis of ``padded`` pixels, padding included."""
    return (padded - dilation * (kernel - 1) - 1) // stride + 1


def convolve(x, weight, geometry, out_channels):
    """Convolve x [B, C, H, W] with weight [O, C / groups, kh, kw], one matrix product per group: [B, O, H', W']."""
    batch, _, height, width = x.shape
    rows, columns = geometry.output_size(height, width)
    groups = geometry.groups
    if weight.dtype != x.dtype:  # mixed precision casts the input; only MindSpore's layers cast the weight
        weight = ops.cast(weight, x.dtype)
    patches = geometry(x).reshape(batch * groups, -1, rows * columns)
    flat = weight.reshape(1, groups, out_channels // groups, -1)
    flat = flat.broadcast_to((batch,) + flat.shape[1:]).reshape(batch * groups, out_channels // groups, -1)
    return ops.bmm(flat, patches).reshape(batch, out_channels, rows, columns)


class PatchConv2d(nn.Conv2d):
    """An ``nn.Conv2d`` that multiplies patches by weights. Made by class assignment, never constructed."""

    def construct(self, x):
        """As ``nn.Conv2d``."""
        output = convolve(x, self.weight, self.thor_geometry, self.out_channels)
        if self.has_bias:
            output = self.bias_add(output, self.bias)
        return output


def can_run_as_patches(cell: nn.Cell) -> bool:
    """Whether a convolution can run as patches: a plain NCHW ``nn.Conv2d``."""
    return type(cell) is nn.Conv2d and cell.data_format == "NCHW"


def use_patches(net: nn.Cell) -> int:
    """Turn every plain ``nn.Conv2d`` of the network into a :class:`PatchConv2d`, in place; return their number."""
    convolutions = [cell for _, cell in net.cells_and_names() if can_run_as_patches(cell)]
    make_patched(convolutions)
    forget_graphs(net)
    return len(convolutions)


def forget_graphs(net: nn.Cell) -> None:
    """Drop the network's compiled graphs: MindSpore would go on running them after a layer's class has changed."""
    for _, cell in net.cells_and_names():
        cell.compile_cache.clear()


def make_patched(convolutions: Iterable[nn.Cell]) -> None:
    """Turn these convolutions, all of which can run as patches, into :class:`PatchConv2d`, in place."""
    for cell in convolutions:
        set_unregistered(cell, thor_geometry=geometry_of(cell))
        cell.__class__ = PatchConv2d


def patched(net: nn.Cell) -> list[nn.Cell]:
    """The layers that :func:`use_patches` has changed, including those that were captured afterwards."""
    return [c for _, c in net.cells_and_names() if PatchConv2d in (type(c), getattr(c, "thor_original", None))]


def restore(net: nn.Cell) -> int:
    """Undo :func:`use_patches`; return the number of layers restored."""
    changed = [cell for _, cell in net.cells_and_names() if type(cell) is PatchConv2d]
    for cell in changed:
        cell.__class__ = nn.Conv2d
        delete_unregistered(cell, "thor_geometry")
    forget_graphs(net)
    return len(changed)
