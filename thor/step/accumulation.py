"""Sums over micro-batches, kept in Parameters between compiled functions."""

from __future__ import annotations

from collections.abc import Iterable

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from thor.curvature.layer import Layer
from thor.runtime.graph_ops import over, scaled, times

_cast = ops.Cast()
_NARROW = (ms.float16, ms.bfloat16)


def sum_of(parameter: Parameter) -> Parameter:
    """A zero Parameter for the sum of a Parameter's gradients: in float32 if a sum in its own type could overflow."""
    dtype = ms.float32 if parameter.dtype in _NARROW else parameter.dtype
    zeros = Tensor(np.zeros(parameter.shape, np.float32)).astype(dtype)
    return Parameter(zeros, name=f"thor.sum.{parameter.name}", requires_grad=False)


class Accumulators:
    """Sums over the micro-batches of one step.

    Attributes:
        gradients: sums of the weights' gradients.
        statistics: sums of all layers' statistics.
        loss: sum of the losses.
    """

    def __init__(self, weights: Iterable[Parameter], layers: Iterable[Layer]):
        self.gradients = ParameterTuple(map(sum_of, weights))
        self.statistics = ParameterTuple(sum_of(port) for layer in layers for port in layer.port_parameters)
        self.loss = Parameter(Tensor(np.zeros((), np.float32)), name="thor.sum.loss", requires_grad=False)

    @property
    def all(self) -> list[Parameter]:
        """Every sum."""
        return [*self.gradients, *self.statistics, self.loss]


class Adder(nn.Cell):
    """Adds values and a loss, times a weight (None for 1), to their sums, and returns the loss."""

    def __init__(self, sums: list[Parameter], loss_sum: Parameter):
        super().__init__(auto_prefix=False)
        self.sums, self.loss_sum = ParameterTuple(sums), loss_sum
        self.types = tuple(each.dtype for each in sums)

    def construct(self, loss, values, weight):
        part = loss.astype(ms.float32)
        if weight is not None:
            part, values = part * weight, over(ops.partial(times, weight), values)
        ops.assign_add(self.loss_sum, part)
        for i in range(len(self.sums)):
            ops.assign_add(self.sums[i], _cast(values[i], self.types[i]))
        return loss


class ScaledSums(nn.Cell):
    """(loss_sum, sums), each times a factor, in the types of ``variables``, whose gradients were summed."""

    def __init__(self, sums: list[Parameter], loss_sum: Parameter, variables: list[Parameter]):
        super().__init__(auto_prefix=False)
        self.sums, self.loss_sum = ParameterTuple(sums), loss_sum
        self.types = tuple(each.dtype for each in variables)
        self.widened = self.types != tuple(each.dtype for each in sums)

    def construct(self, factor):
        values = scaled(factor, self.sums)
        if self.widened:
            values = over(_cast, values, self.types)
        return self.loss_sum * factor, values


class Clearer(nn.Cell):
    """Sets every sum to zero."""

    def __init__(self, sums: list[Parameter]):
        super().__init__(auto_prefix=False)
        self.sums = ParameterTuple(sums)

    def construct(self):
        for value in self.sums:
            ops.assign(value, ops.zeros_like(value))
        return self.sums[0]
