"""Sums over micro-batches, kept in Parameters between compiled functions."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, ParameterTuple, nn, ops

from thor.compiled import scaled


class Adder(nn.Cell):
    """sums += values, loss_sum += loss."""

    def __init__(self, sums: list[Parameter], loss_sum: Parameter):
        super().__init__(auto_prefix=False)
        self.sums, self.loss_sum = ParameterTuple(sums), loss_sum

    def construct(self, loss, values):
        ops.assign_add(self.loss_sum, loss.astype(ms.float32))
        for i in range(len(self.sums)):
            ops.assign_add(self.sums[i], values[i])
        return loss


class Values(nn.Cell):
    """(loss_sum, sums), each times a factor."""

    def __init__(self, sums: list[Parameter], loss_sum: Parameter):
        super().__init__(auto_prefix=False)
        self.sums, self.loss_sum = ParameterTuple(sums), loss_sum

    def construct(self, factor):
        return self.loss_sum * factor, scaled(factor, self.sums)


class Clearer(nn.Cell):
    """Zero every accumulator."""

    def __init__(self, sums: list[Parameter]):
        super().__init__(auto_prefix=False)
        self.sums = ParameterTuple(sums)

    def construct(self):
        for value in self.sums:
            ops.assign(value, ops.zeros_like(value))
        return self.sums[0]
