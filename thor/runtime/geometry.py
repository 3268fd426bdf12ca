"""Geometry of convolutions, and the patches that their kernels see.

Shapes: B examples, C channels, D x H x W pixels, k kernel positions, P output positions. The coordinates of a patch
are ordered (channel, kernel position), as in the weight [O, C / groups, kh, kw].
"""

from __future__ import annotations

import math

import numpy as np
from mindspore import Tensor, mint, nn, ops

from thor.runtime.graph_ops import is_at_least, itself, shared

_gather = ops.Gather()

#: Classes of convolutions over one and over three axes; all others are over two.
_OVER_ONE = (nn.Conv1d, nn.Conv1dTranspose)
_OVER_THREE = (nn.Conv3d, nn.Conv3dTranspose, mint.nn.Conv3d)


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
        self.area = math.prod(kernel)
        self.pad_mode, self.pads = pad_mode, pads

    def padding(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Padding (top, bottom, left, right) of an input of ``height`` x ``width``, in MindSpore's three pad modes."""
        rows = padding_along(height, self.kernel[0], self.stride[0], self.dilation[0], self.pad_mode, self.pads[:2])
        columns = padding_along(width, self.kernel[1], self.stride[1], self.dilation[1], self.pad_mode, self.pads[2:])
        return rows + columns

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        top, bottom, left, right = self.padding(height, width)
        rows = output_length(height + top + bottom, self.kernel[0], self.stride[0], self.dilation[0])
        columns = output_length(width + left + right, self.kernel[1], self.stride[1], self.dilation[1])
        return rows, columns

    def construct(self, x):
        """Patches [B, C k, P] of x [B, C, H, W]."""
        pads = self.padding(x.shape[2], x.shape[3])
        way = _way(self.kernel, self.stride, pads)
        return (_as_it_is, _unfolded, _padded_and_unfolded)[way](x, self.kernel, self.stride, self.dilation, pads)


@ops.constexpr
def _way(kernel: tuple[int, int], stride: tuple[int, int], pads: tuple[int, int, int, int]) -> int:
    """How patches are found: as they are, unfolded, or padded and unfolded."""
    if kernel == (1, 1) and stride == (1, 1) and not any(pads):
        return 0
    return 1 if pads[0] == pads[1] and pads[2] == pads[3] else 2


def _as_it_is(x, kernel, stride, dilation, pads):
    batch, channels, height, width = x.shape
    return x.reshape(batch, channels, height * width)


def _unfolded(x, kernel, stride, dilation, pads):
    batch, channels, _, _ = x.shape
    patches = ops.Im2Col(ksizes=kernel, strides=stride, dilations=dilation, pads=(pads[0], pads[2]))(x)
    return patches.reshape(batch, channels * kernel[0] * kernel[1], -1)


def _padded_and_unfolded(x, kernel, stride, dilation, pads):
    x = ops.Pad(((0, 0), (0, 0), pads[:2], pads[2:]))(x)
    return _unfolded(x, kernel, stride, dilation, (0, 0, 0, 0))


class VolumeGeometry(nn.Cell):
    """Geometry of a convolution over three axes: that of its planes, and kernel, stride, dilation, padding in depth."""

    def __init__(
        self, plane: Geometry, kernel: int, stride: int, dilation: int, pads: tuple[int, int]
    ):  # fmt: skip
        super().__init__(auto_prefix=False)
        self.plane, self.groups, self.area = plane, plane.groups, kernel * plane.area
        self.kernel, self.stride, self.dilation, self.pads = kernel, stride, dilation, pads

    def padding(self, depth: int) -> tuple[int, int]:
        """Padding (front, back) of an input of so many planes."""
        return padding_along(depth, self.kernel, self.stride, self.dilation, self.plane.pad_mode, self.pads)

    def construct(self, x):
        """Patches [B, C k, P] of x [B, C, D, H, W]: planes at one place of the kernel's depth are unfolded together."""
        batch, channels, depth, height, width = x.shape
        pads = self.padding(depth)
        planes = output_length(depth + pads[0] + pads[1], self.kernel, self.stride, self.dilation)
        x = (itself, _padded_in_depth)[is_at_least(pads[0] + pads[1], 1)](x, pads)
        chosen = _gather(x, _planes(self.kernel, planes, self.stride, self.dilation), 2)
        images = chosen.transpose(0, 2, 1, 3, 4).reshape(batch * self.kernel * planes, channels, height, width)
        patches = self.plane(images).reshape(batch, self.kernel, planes, channels, self.plane.area, -1)
        return patches.transpose(0, 3, 1, 4, 2, 5).reshape(batch, channels * self.area, -1)


@ops.constexpr
def _planes(kernel: int, count: int, stride: int, dilation: int) -> Tensor:
    """The planes that a kernel of so many places sees at ``count`` outputs, place by place."""
    places, outputs = np.arange(kernel) * dilation, np.arange(count) * stride
    return Tensor((places[:, None] + outputs).reshape(-1).astype(np.int32))


def _padded_in_depth(x, pads):
    return ops.Pad(((0, 0), (0, 0), pads, (0, 0), (0, 0)))(x)


def groups_of(conv: nn.Cell) -> int:
    """The number of groups of a convolution of ``nn`` or of ``mint.nn``."""
    return int(conv.groups if hasattr(conv, "groups") else conv.group)


def geometry_of(conv: nn.Cell) -> Geometry | VolumeGeometry:
    """The geometry of a convolution. Layers of equal geometry share one object.

    A transposed convolution has the geometry of the convolution whose input its output is.
    """
    axes = 3 if isinstance(conv, _OVER_THREE) else 2
    sizes = [_last(each, axes) for each in (conv.kernel_size, conv.stride, conv.dilation)]
    if isinstance(conv, _OVER_ONE):
        sizes = [(1, each[-1]) for each in sizes]
    pad_mode, pads = _pads_of(conv, axes)
    plane = shared(Geometry, *(each[-2:] for each in sizes), groups_of(conv), pad_mode, pads[-4:])
    return plane if axes == 2 else shared(VolumeGeometry, plane, *(each[0] for each in sizes), pads[:2])


def _pads_of(conv: nn.Cell, axes: int) -> tuple[str, tuple[int, ...]]:
    """Pad mode, and the padding before and after along each axis."""
    if hasattr(conv, "pad_mode"):
        pads = (conv.padding,) * (2 * axes) if isinstance(conv.padding, int) else tuple(conv.padding)
        if isinstance(conv, _OVER_ONE) and conv.pad_mode == "pad":
            pads = (0, 0, *pads[-2:])
        return conv.pad_mode, pads
    if isinstance(conv.padding, str):  # of mint.nn
        return conv.padding, (0,) * (2 * axes)
    return "pad", tuple(pad for pad in _last(conv.padding, axes) for _ in range(2))


def _last(value, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)[-count:]


@ops.constexpr
def padding_along(
    length: int, kernel: int, stride: int, dilation: int, pad_mode: str, pads: tuple[int, int]
) -> tuple[int, int]:
    """Padding (before, after) along an axis of ``length`` pixels; ``pads`` is that of pad_mode "pad"."""
    if pad_mode == "valid":
        return (0, 0)
    return pads if pad_mode == "pad" else same_padding(length, kernel, stride, dilation)


def same_padding(length: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Padding (before, after) of pad_mode "same": ceil(length / stride) outputs; an odd padding has more after."""
    outputs = (length + stride - 1) // stride
    total = (outputs - 1) * stride + dilation * (kernel - 1) + 1 - length
    total = total if total > 0 else 0
    return total // 2, total - total // 2


def output_length(padded: int, kernel: int, stride: int, dilation: int) -> int:
    """Number of outputs along an axis of ``padded`` pixels, padding included."""
    return (padded - dilation * (kernel - 1) - 1) // stride + 1
