"""Whether everything is finite, found by one kernel a tensor: a number that is not finite if an entry is not.

    sum of x^2 / 2    MindSpore's L2Loss: on a CPU one quick kernel, which rounds to a few digits; on a GPU it takes
                      4.2 ms for 512 x 4608 numbers (H100), half of a whole step of Momentum on ResNet-50
    sum of x          ReduceSum: 0.05 ms there; on a CPU 3.6 ms where L2Loss takes 1.3 (docs/speed.md)

Numbers whose squares, or whose sum, overflow float32 count as not finite. The functions are for compiled graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import ops

from thor.runtime import device
from thor.runtime.graph_ops import over

_half_square, _sum, _cast = ops.L2Loss(), ops.ReduceSum(), ops.Cast()


def half_square(x):
    """Half the sum of squares, float32."""
    return _half_square(_cast(x, ms.float32))


def total(x):
    """The sum of all entries, float32."""
    return _sum(_cast(x, ms.float32))


def finiteness_summary() -> Callable[[Any], Any]:
    """What the current target does best of the two; asked for when a step is put together, not within a graph."""
    return half_square if device.l2_loss_is_fast() else total


def summary_of_all() -> Callable[[Any], Any]:
    """In a graph: one number of a tuple of tensors, not finite if an entry of one of them is not."""
    each = finiteness_summary()

    def summary(values):
        return ops.addn(over(each, values))

    return summary


def checker() -> Callable[..., Any]:
    """In a graph: (loss, whether all is finite), the gradients and the statistics.

    Of these the blocks are looked at, every third: what stands beside finite ones is no larger.
    """
    summary = summary_of_all()

    def checked(loss, gradients, fresh):
        all_entries = _cast(loss, ms.float32) + summary(gradients + fresh[::3]) * 0.0
        return (in_one_thread(loss), ops.isfinite(all_entries)) + gradients + fresh

    return checked


def in_one_thread(loss):
    """The loss as it is, behind a branch, for speed alone.

    MindSpore 2.10 spreads a graph without one over threads of a CPU, where products slow each other (docs/speed.md).
    """
    if ops.isfinite(loss):
        loss = loss + 0.0 * loss
    return loss
