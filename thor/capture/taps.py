"""Taps: how factors are read from the backward pass of a user's network.

A captured layer stays the user's object. Its class becomes a subclass whose ``construct`` sends the input and the
pre-activation output through *ports*. A port is the identity. The custom ``bprop`` of its tap returns the fresh
statistics of the factor as the "gradients" of the port's Parameters. One ``value_and_grad`` over weights and port
Parameters therefore yields gradients and factors together, without side effects in the graph. A layer that is used
several times sums its contributions, as gradients do.

A loss may hold derivatives of the network by its input, so that MindSpore differentiates a tap twice. For this a tap
keeps all its arguments by Depend, or the second pass would drop those it does not see used. Its ``bprop``, and whatever
that calls, is made of operators and of choices at compile time (``graph_ops.is_at_least``): it has no branches.

The Parameters of a port are also storage: they hold the running estimate (see thor/curvature/factor.py).
"""

from __future__ import annotations

from mindspore import Parameter, nn

from thor.factors.statistics import Statistics
from thor.runtime import convolution
from thor.runtime.graph_ops import after


class Tap(nn.Cell):
    """Identity on x whose ``bprop`` returns a factor's statistics as the gradients of (blocks, probe, uses)."""

    def __init__(self, statistics: Statistics):
        super().__init__(auto_prefix=False)
        self.statistics = statistics

    def construct(self, x, blocks, probe, uses):
        return after(x, (blocks, probe, uses))


class InputTap(Tap):
    """Statistics of a layer's input.

    They are taken from the tap's output: the compiler then computes the patches of a convolution once, for the layer
    and for them.
    """

    def bprop(self, x, blocks, probe, uses, out, dout):
        fresh_blocks, beside, one = self.statistics(out, None, probe)
        return dout, fresh_blocks, beside, one


class OutputTap(Tap):
    """Statistics of the gradient of a layer's output."""

    def bprop(self, x, blocks, probe, uses, out, dout):
        fresh_blocks, beside, one = self.statistics(dout, None, probe)
        return dout, fresh_blocks, beside, one


class Port(nn.Cell):
    """Holds a tap and its Parameters. ``active`` is read when a graph is compiled, in PyNative mode at each call."""

    def __init__(self, tap: nn.Cell, blocks: Parameter, probe: Parameter, uses: Parameter):
        super().__init__(auto_prefix=False)
        self.tap = tap
        self.blocks, self.probe, self.uses = blocks, probe, uses
        self.active = False

    def construct(self, x):
        if self.active:
            return self.tap(x, self.blocks, self.probe, self.uses)
        return x


class OutputPort(Port):
    """A port for a layer's output y, which is given the layer's input x too."""

    def construct(self, y, x):
        if self.active:
            return self.tap(y, self.blocks, self.probe, self.uses)
        return y


class Untapped(nn.Cell):
    """Stands where a layer has no port."""

    def construct(self, x):
        return x


class TappedDense(nn.Dense):
    """``nn.Dense`` with ports around its affine part. Made by class assignment, never constructed."""

    def construct(self, x):
        shape = x.shape
        if len(shape) != 2:
            x = x.reshape(-1, shape[-1])
        rows = x
        x = self.matmul(self.thor_input(x), self.weight)
        if self.has_bias:
            x = self.bias_add(x, self.bias)
        x = self.thor_output(x, rows)
        if self.activation_flag:
            x = self.activation(x)
        if len(shape) != 2:
            x = x.reshape(shape[:-1] + (x.shape[-1],))
        return x


class TappedConv2d(nn.Conv2d):
    """``nn.Conv2d`` with ports around it. Made by class assignment, never constructed."""

    def construct(self, x):
        image = x
        x = self.thor_input(x)
        if self.thor_as_patches:
            x = convolution.convolve(x, self.weight, self.thor_geometry, self.out_channels)
        else:
            x = self.conv2d(x, self.weight)
        if self.has_bias:
            x = self.bias_add(x, self.bias)
        return self.thor_output(x, image)
