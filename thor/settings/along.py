"""The optimizer that moves weights along finished directions."""

from __future__ import annotations

from mindspore import nn, ops

from thor.runtime.graph_ops import over

_along = ops.MultitypeFuncGraph("along")


@_along.register("Tensor", "Tensor", "Tensor")
def _move(rate, weight, direction):
    """Move a weight: w <- w - lr d."""
    return ops.assign(weight, weight - ops.cast(rate, weight.dtype) * ops.cast(direction, weight.dtype))


class Along(nn.Optimizer):
    """w <- w - lr d, with the learning rates, schedules and groups of ``nn.Optimizer``."""

    def __init__(self, params, learning_rate):
        super().__init__(learning_rate, params)

    def construct(self, directions):
        rate = self.get_lr()
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        if self.is_group_lr:
            return over(_along, rate, self.parameters, directions)
        return over(ops.partial(_along, rate), self.parameters, directions)
