"""Taps: how factors leave an unchanged user network.

A captured layer stays the user's object. Its class becomes a subclass whose ``construct`` sends the input and the
pre-activation output through *ports*. A port is the identity; differentiated with respect to its Parameters, its
custom ``bprop`` returns the fresh statistics of the factor as their "gradients". So one ``value_and_grad`` over weights
and port Parameters yields gradients and factors together, with no side effect in the graph, and a layer that is used
several times sums its contributions, as gradients do.

The Parameters of a port double as storage: they hold the running estimate (see layers.py).
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, nn, ops

from thor import convolution, factors


class Features(nn.Cell):
    """From a layer's input or output gradient to features and scale; see factors.py.

    ``share`` of the examples is looked at.
    """

    def __init__(
        self, kind: str, homogeneous: bool, geometry: convolution.Geometry | None, groups: int, order: str,
        share: float = 1.0,
    ):  # fmt: skip
        super().__init__(auto_prefix=False)
        self.kind, self.homogeneous, self.groups = kind, homogeneous, groups
        self.geometry, self.by_position, self.share = geometry, order == "position", share

    def construct(self, x):
        x, times = factors.first_examples(x, self.share)
        if self.kind == "dense_input":
            return factors.dense_input(x, self.homogeneous)
        if self.kind == "conv_input":
            return factors.conv_input(x, self.geometry, self.homogeneous, self.by_position)
        if self.kind == "dense_output":
            features, scale = factors.dense_output(x)
        else:
            features, scale = factors.conv_output(x, self.groups)
        return features, scale * times * times


class Statistics(nn.Cell):
    """Fresh statistics of one factor: blocks, what the split keeps beside them, and a 1 that counts uses."""

    def __init__(self, features: Features, cut):
        super().__init__(auto_prefix=False)
        self.features, self.by_rows = features, features.kind.startswith("dense")
        self.size, self.count, self.padded, self.split = cut.size, cut.count, cut.padded, cut.split
        self.bias_apart = cut.bias_apart

    def construct(self, x, probe):
        features, scale = self.features(x)
        features = factors.pad_features(features, self.padded, self.by_rows)
        blocks = factors.block_gram(features, scale, self.size, self.count, self.by_rows)
        beside = ops.zeros_like(probe)
        if self.split == "block+mean":
            beside = factors.scaled_mean(features, scale, self.bias_apart, self.by_rows)
        elif self.split == "block+rank":
            beside = factors.sketch(features, scale, probe, self.by_rows)
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
