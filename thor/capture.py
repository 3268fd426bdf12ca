"""Taps: how factors leave an unchanged user network.

A captured layer stays the user's object. Its class becomes a subclass whose ``construct`` sends the input and the
pre-activation output through *ports*. A port is the identity; differentiated with respect to its Parameters, its
custom ``bprop`` returns the fresh statistics of the factor as their "gradients". So one ``value_and_grad`` over weights
and port Parameters yields gradients and factors together, with no side effect in the graph, and a layer that is used
several times sums its contributions, as gradients do.

The Parameters of a port double as storage: they hold the running estimate (see layers.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import Parameter, nn, ops

from thor import convolution, device, factors


class Features(nn.Cell):
    """From a layer's input or output gradient to features and scale; see factors.py."""

    def __init__(
        self, kind: str, homogeneous: bool, geometry: convolution.Geometry | None, groups: int, order: str
    ):  # fmt: skip
        super().__init__(auto_prefix=False)
        self.kind, self.homogeneous, self.groups = kind, homogeneous, groups
        self.geometry, self.by_position = geometry, order == "position"

    def construct(self, x):
        if self.kind == "dense_input":
            return factors.dense_input(x, self.homogeneous)
        if self.kind == "dense_output":
            return factors.dense_output(x)
        if self.kind == "conv_input":
            return factors.conv_input(x, self.geometry, self.homogeneous, self.by_position)
        return factors.conv_output(x, self.groups)


class Statistics(nn.Cell):
    """Fresh statistics of one factor: blocks, what the split keeps beside them, and a 1 that counts uses."""

    def __init__(self, features: Features, cut):
        super().__init__(auto_prefix=False)
        self.features = features
        self.size, self.count, self.padded, self.split = cut.size, cut.count, cut.padded, cut.split

    def construct(self, x, probe):
        features, scale = self.features(x)
        features = factors.pad_features(features, self.padded)
        blocks = factors.block_gram(features, scale, self.size, self.count)
        beside = ops.zeros_like(probe)
        if self.split == "block+mean":
            beside = factors.scaled_mean(features, scale)
        elif self.split == "block+rank":
            beside = factors.sketch(features, scale, probe)
        return blocks, beside, ops.ones((1,), ms.float32)


class Tap(nn.Cell):
    """Identity on x whose ``bprop`` gives (blocks, probe, uses) the statistics of a factor as their gradients."""

    def __init__(self, statistics: Statistics):
        super().__init__(auto_prefix=False)
        self.statistics = statistics

    def construct(self, x, blocks, probe, uses):
        return x


class InputTap(Tap):
    """The statistics are those of the saved input."""

    def bprop(self, x, blocks, probe, uses, out, dout):
        fresh_blocks, beside, one = self.statistics(x, probe)
        return dout, fresh_blocks, beside, one


class OutputTap(Tap):
    """The statistics are those of the incoming gradient."""

    def bprop(self, x, blocks, probe, uses, out, dout):
        fresh_blocks, beside, one = self.statistics(dout, probe)
        return dout, fresh_blocks, beside, one


class Port(nn.Cell):
    """Where a tap meets its Parameters. ``active`` is read when a graph is compiled, and at each call in PyNative."""

    def __init__(self, tap: nn.Cell, blocks: Parameter, probe: Parameter, uses: Parameter):
        super().__init__(auto_prefix=False)
        self.tap = tap
        self.blocks, self.probe, self.uses = blocks, probe, uses
        self.active = False

    def construct(self, x):
        if self.active:
            return self.tap(x, self.blocks, self.probe, self.uses)
        return x


class TappedDense(nn.Dense):
    """``nn.Dense`` with ports around its affine part. Made by class assignment, never constructed."""

    def construct(self, x):
        shape = x.shape
        if len(shape) != 2:
            x = x.reshape(-1, shape[-1])
        x = self.matmul(self.thor_input(x), self.weight)
        if self.has_bias:
            x = self.bias_add(x, self.bias)
        x = self.thor_output(x)
        if self.activation_flag:
            x = self.activation(x)
        if len(shape) != 2:
            x = x.reshape(shape[:-1] + (x.shape[-1],))
        return x


class TappedConv2d(nn.Conv2d):
    """``nn.Conv2d`` with ports around it. Made by class assignment, never constructed."""

    def construct(self, x):
        x = self.thor_input(x)
        if self.thor_as_patches:
            x = convolution.convolve(x, self.weight, self.thor_geometry, self.out_channels)
        else:
            x = self.conv2d(x, self.weight)
        if self.has_bias:
            x = self.bias_add(x, self.bias)
        return self.thor_output(x)


_TAPPED: dict[Any, Any] = {nn.Dense: TappedDense, nn.Conv2d: TappedConv2d}
_ATTRIBUTES = ("thor_input", "thor_output", "thor_geometry", "thor_as_patches", "thor_original")


@dataclass(frozen=True)
class Target:
    """A layer that can be captured: every Cell that owns one weight, and what its factors look like."""

    name: str
    cells: tuple[nn.Cell, ...]
    kind: str  # "dense" | "conv"
    weight: Parameter
    bias: Parameter | None
    copies: int
    a_dim: int
    g_dim: int


@dataclass(frozen=True)
class LeftOut:
    """A layer with weights of its own that takes the plain gradient, and why."""

    name: str
    type: str
    reason: str


def _base_of(cell: nn.Cell) -> type | None:
    """``nn.Dense`` or ``nn.Conv2d`` if the Cell computes as one of them does, else None."""
    if type(cell) is convolution.PatchConv2d:
        return nn.Conv2d
    for base in _TAPPED:
        if isinstance(cell, base) and type(cell).construct is base.construct:
            return base
    return None


def _reason_against(cell: nn.Cell, base: type | None, name: str, skip: list[re.Pattern[str]]) -> str | None:
    if any(pattern.search(name) for pattern in skip):
        return "matches skip"
    if base is None:
        overridden = next((b.__name__ for b in _TAPPED if isinstance(cell, b)), None)
        return f"overrides {overridden}.construct" if overridden else "this type has no factors here"
    if not cell.weight.requires_grad:
        return "frozen"
    if base is nn.Conv2d and cell.data_format != "NCHW":
        return f"data_format {cell.data_format}"
    return None


def find(net: nn.Cell, skip: Iterable[str] = ()) -> tuple[list[Target], list[LeftOut]]:
    """Layers of the network by object: those that can be captured, and those with weights that cannot.

    ``skip`` holds regular expressions; one that matches a layer's name leaves it out. Cells that share one weight are
    one target, named after the first.
    """
    patterns = [re.compile(pattern) for pattern in skip]
    groups: dict[int, list[tuple[str, nn.Cell]]] = {}
    left_out: list[LeftOut] = []
    for name, cell in net.cells_and_names():
        own = [p for p in cell._params.values() if p is not None]
        if not own:
            continue
        reason = _reason_against(cell, _base_of(cell), name, patterns)
        if reason is None:
            groups.setdefault(id(cell.weight), []).append((name, cell))
        else:
            left_out.append(LeftOut(name or type(net).__name__, type(cell).__name__, reason))
    targets: list[Target] = []
    for members in groups.values():
        first = _target(*members[0])
        alike = [cell for name, cell in members if _same_form(_target(name, cell), first)]
        targets.append(_target(members[0][0], *alike))
        left_out += [LeftOut(n, type(c).__name__, f"shares {first.name}'s weight in another form")
                     for n, c in members if not any(c is cell for cell in alike)]  # fmt: skip
    return targets, left_out


def _target(name: str, *cells: nn.Cell) -> Target:
    cell = cells[0]
    bias = cell.bias if cell.has_bias and cell.bias.requires_grad else None
    homogeneous = int(bias is not None)
    label = name or type(cell).__name__
    if _base_of(cell) is nn.Dense:
        return Target(label, cells, "dense", cell.weight, bias, 1, cell.in_channels + homogeneous, cell.out_channels)
    _, channels, height, width = cell.weight.shape
    a_dim = channels * height * width + homogeneous
    return Target(label, cells, "conv", cell.weight, bias, cell.group, a_dim, cell.out_channels // cell.group)


def _same_form(one: Target, other: Target) -> bool:
    return (one.kind, one.copies, one.a_dim, one.g_dim, id(one.bias)) == (
        other.kind, other.copies, other.a_dim, other.g_dim, id(other.bias))  # fmt: skip


def attach(target: Target, a_cut, g_cut, a_parameters, g_parameters, order: str = "channel") -> list[Port]:
    """Put ports around every Cell of the target; returns them. Parameters are (blocks, probe, uses) of each factor."""
    ports = []
    for cell in target.cells:
        geometry = convolution.Geometry(cell) if target.kind == "conv" else None
        homogeneous = target.bias is not None
        inputs = Features(f"{target.kind}_input", homogeneous, geometry, target.copies, order)
        outputs = Features(f"{target.kind}_output", homogeneous, geometry, target.copies, order)
        thor_input = Port(InputTap(Statistics(inputs, a_cut)), *a_parameters)
        thor_output = Port(OutputTap(Statistics(outputs, g_cut)), *g_parameters)
        original = type(cell)
        values = (thor_input, thor_output, geometry, device.convolution_path() == "patches", original)
        for name, value in zip(_ATTRIBUTES, values, strict=True):
            object.__setattr__(cell, name, value)  # past Cell's registration: the network gets no new child
        cell.__class__ = _tapped_class(original)
        ports += [thor_input, thor_output]
    return ports


def _tapped_class(original: type) -> type:
    if original is convolution.PatchConv2d:
        original = nn.Conv2d
    if original not in _TAPPED:
        base = next(base for base in (nn.Dense, nn.Conv2d) if issubclass(original, base))
        _TAPPED[original] = type(f"Tapped{original.__name__}", (_TAPPED[base], original), {})
    return _TAPPED[original]


def tapped_cells(net: nn.Cell) -> Iterator[tuple[str, nn.Cell]]:
    """Captured layers of the network, with their names."""
    for name, cell in net.cells_and_names():
        if "thor_original" in vars(cell):
            yield name, cell


def detach(net: nn.Cell) -> int:
    """Leave the network as it was before THOR; returns the number of layers restored."""
    cells = [cell for _, cell in tapped_cells(net)]
    for cell in cells:
        cell.__class__ = cell.thor_original
        keep = ("thor_geometry",) if type(cell) is convolution.PatchConv2d else ()
        for name in _ATTRIBUTES:
            if name not in keep:
                object.__delattr__(cell, name)
    return len(cells) + convolution.restore(net)
