"""The update of the running averages by fresh statistics, compiled as a separate graph."""

from __future__ import annotations

from mindspore import ParameterTuple, nn, ops

from thor.curvature.layer import Layer
from thor.runtime.graph_ops import entries_of, over, reshaped

_assign_add = ops.AssignAdd()


class Estimate(nn.Cell):
    """F <- F + gain (fresh - F) for every statistic of ``layers``; returns ``gain``.

    ``gain`` has one number per layer, 0 for a layer that has stopped. G is quadratic in the loss scale and its mean is
    linear; therefore fresh statistics are multiplied by powers of 1 / scale (``Layer.powers``).

    The update is not part of the curvature graph, because it would make the compiler of that graph take much more
    memory. The branch is only for speed: MindSpore's CPU runtime runs the kernels of a graph without a branch in
    several threads, which keep spinning afterwards.
    """

    def __init__(self, layers: list[Layer], scaled: bool):
        super().__init__(auto_prefix=False)
        self.scaled = scaled
        parameters, powers, layer_of = [], [], []
        for i, layer in enumerate(layers):
            of_a, *of_g = layer.powers
            for factor, each in ((layer.a, (of_a, 0, 0)), (layer.g, of_g)):
                for parameter, power in zip(factor.estimates, each, strict=True):
                    parameters.append(parameter)
                    powers.append(power)
                    layer_of.append(i)
        # the Parameter `beside` of plain blocks is always zero
        unused = {id(f.beside) for layer in layers for f in (layer.a, layer.g) if not f.cut.rank}
        self.indices = tuple(i for i, parameter in enumerate(parameters) if id(parameter) not in unused)
        self.powers, self.layer_of = (tuple(each[i] for i in self.indices) for each in (powers, layer_of))
        self.estimates = ParameterTuple(parameters)
        self.layers = tuple(range(len(layers)))

    def construct(self, gain, inverse_scale, fresh):
        gains = over(ops.partial(self._gain, gain), self.layers)
        by_power = (1.0, inverse_scale, inverse_scale * inverse_scale)
        if ops.isfinite(gains[0]):  # always true; see the class's docstring
            averages = ops.partial(self._average, gains, by_power, fresh)
            gain = ops.depend(gain, over(averages, self.indices, self.powers, self.layer_of))
        return gain

    def _gain(self, gain, i):
        return reshaped(entries_of(gain, i, 1), ())  # a scalar: on a CPU MindSpore broadcasts shape (1,) slowly

    def _average(self, gains, by_power, fresh, index, power, layer):
        estimate = self.estimates[index]
        value = fresh[index]
        if self.scaled:
            value = value * by_power[power]
        return _assign_add(estimate, gains[layer] * (value - estimate))
