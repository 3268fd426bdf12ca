"""The update of the running averages by fresh statistics, compiled as a separate graph."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from thor.curvature.layer import Layer
from thor.runtime import device
from thor.runtime.graph_ops import entry, over, reshaped, shared
from thor.runtime.stack import Stack

_assign_add, _descend, _gather = ops.AssignAdd(), ops.ApplyGradientDescent(), ops.Gather()


class Estimate(nn.Cell):
    """F <- F + gain (fresh - F) for every statistic of ``layers``; returns ``gain``.

    ``gain`` has one number per layer, 0 for a layer that has stopped. G is quadratic in the loss scale and its mean is
    linear; therefore fresh statistics are multiplied by powers of 1 / scale (``Layer.powers``). Counts of uses, one
    number each, are joined to one vector, so that they take few kernels.

    The update is not part of the curvature graph, because it would make the compiler of that graph take much more
    memory. The branch is only for speed: MindSpore's CPU runtime runs the kernels of a graph without a branch in
    several threads, which keep spinning afterwards.
    """

    def __init__(self, layers: list[Layer], scaled: bool):
        super().__init__(auto_prefix=False)
        self.scaled = scaled
        self.move = moved_by_descent if device.spares_kernels() else moved_by_sum
        parameters: list[Parameter] = []
        powers: list[int] = []
        layer_of: list[int] = []
        uses: list[int] = []
        for i, layer in enumerate(layers):
            of_a, *of_g = layer.powers
            for factor, each in ((layer.a, (of_a, 0, 0)), (layer.g, of_g)):
                parameters += factor.estimates
                powers += each
                layer_of += [i] * len(each)
                if not each[-1]:  # a count of uses, the last of the three
                    uses.append(len(parameters) - 1)
        # the Parameter `beside` of plain blocks is always zero
        unused = {id(f.beside) for layer in layers for f in (layer.a, layer.g) if not f.cut.rank}
        apart = [i for i, each in enumerate(parameters) if id(each) not in unused and i not in uses]
        self.indices = tuple(apart)
        self.powers, self.layer_of = (tuple(each[i] for i in apart) for each in (powers, layer_of))
        self.estimates = ParameterTuple(parameters)
        self.gains = shared(Stack, len(layers))
        self.uses, self.joined_uses = tuple(uses), shared(Stack, len(uses))
        self.layers_of_uses = Tensor(np.array([layer_of[i] for i in uses], np.int32))

    def construct(self, gain, inverse_scale, fresh):
        gains = over(scalar_of, self.gains.apart(gain))
        by_power = (1.0, inverse_scale, inverse_scale * inverse_scale)
        if ops.isfinite(gains[0]):  # always true; see the class's docstring
            averages = ops.partial(self._average, gains, by_power, fresh)
            done = over(averages, self.indices, self.powers, self.layer_of)
            gain = ops.depend(gain, (done, self._average_uses(gain, fresh)))
        return gain

    def _average(self, gains, by_power, fresh, index, power, layer):
        value = fresh[index]
        if self.scaled:
            value = value * by_power[power]
        return self.move(self.estimates[index], gains[layer], value)

    def _average_uses(self, gain, fresh):
        """As :meth:`_average`, of the counts of uses of all layers at once."""
        before = self.joined_uses.joined(over(ops.partial(entry, self.estimates), self.uses))
        value = self.joined_uses.joined(over(ops.partial(entry, fresh), self.uses))
        after = before + _gather(gain, self.layers_of_uses, 0) * (value - before)
        return over(self._store, self.joined_uses.apart(after), self.uses)

    def _store(self, value, index):
        return ops.assign(self.estimates[index], value)


def scalar_of(x):
    """[1] as a scalar: on a CPU MindSpore broadcasts shape (1,) slowly."""
    return reshaped(x, ())


def moved_by_sum(estimate, gain, value):
    """Move a running average towards a value, the faster way on a CPU."""
    return _assign_add(estimate, gain * (value - estimate))


def moved_by_descent(estimate, gain, value):
    """As :func:`moved_by_sum`, bit for bit, with two kernels in place of three."""
    return _descend(estimate, gain, estimate - value)
