"""The optimizer that moves weights along finished directions."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

from thor.runtime import device
from thor.runtime.graph_ops import over

_along, _along_by_one_kernel = ops.MultitypeFuncGraph("along"), ops.MultitypeFuncGraph("along_by_one_kernel")
_descend = ops.ApplyGradientDescent()


@_along.register("Tensor", "Tensor", "Tensor")
def _move(rate, weight, direction):
    """Move a weight: w <- w - lr d."""
    return ops.assign(weight, weight - ops.cast(rate, weight.dtype) * ops.cast(direction, weight.dtype))


@_along_by_one_kernel.register("Tensor", "Tensor", "Tensor")
def _move_by_one_kernel(rate, weight, direction):
    """As :func:`_move`, by the kernel that MindSpore has for the usual types; on a CPU it is slower."""
    if weight.dtype == ms.float32 or weight.dtype == ms.float16:
        return _descend(weight, ops.cast(rate, weight.dtype), ops.cast(direction, weight.dtype))
    return _move(rate, weight, direction)


class Along(nn.Optimizer):
    """w <- w - lr d, with the learning rates, schedules and groups of ``nn.Optimizer``."""

    def __init__(self, params, learning_rate):
        super().__init__(learning_rate, params)
        self.move = _along_by_one_kernel if device.spares_kernels() else _along

    def construct(self, directions):
        rate = self.get_lr()
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        if self.is_group_lr:
            return over(self.move, rate, self.parameters, directions)
        return over(ops.partial(self.move, rate), self.parameters, directions)
