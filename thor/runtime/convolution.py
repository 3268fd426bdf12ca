"""Convolution as a product of patches and weights (geometry.py)."""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import nn, ops

from first_order.cells import delete_unregistered, set_unregistered
from thor.runtime.geometry import geometry_of


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
