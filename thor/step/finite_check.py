"""The finite check of compiled graphs: one kernel per tensor gives a number that is not finite if an entry is not.

    sum of x^2 / 2    MindSpore's L2Loss: faster than a sum on a CPU, to a few digits; very slow on a GPU
    sum of x          ReduceSum (docs/dev/performance-log.md compares the two)

Numbers whose squares, or whose sum, overflow float32 count as not finite.
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
    """Return the faster function for the current target: tensor -> one number, not finite if an entry is not.

    Call it when a step is set up, not within a graph.
    """
    return half_square if device.l2_loss_is_fast() else total


def summary_of_all() -> Callable[[Any], Any]:
    """Return a function for graphs: tuple of tensors -> one number, not finite if an entry of any tensor is not."""
    each = finiteness_summary()

    def summary(values):
        return ops.addn(over(each, values))

    return summary


def checker() -> Callable[..., Any]:
    """Return a function for graphs: (loss, gradients, statistics) -> (loss, finite, *gradients, *statistics).

    Statistics come in threes (blocks, beside, uses), and only the blocks are checked: the scaled mean or low-rank part
    of a factor is no larger than its blocks.
    """
    summary = summary_of_all()

    def checked(loss, gradients, fresh):
        all_entries = _cast(loss, ms.float32) + summary(gradients + fresh[::3]) * 0.0
        return (in_one_thread(loss), ops.isfinite(all_entries)) + gradients + fresh

    return checked


def in_one_thread(loss):
    """The loss, unchanged, behind a branch that is only for speed.

    MindSpore's CPU runtime runs the kernels of a graph without a branch in several threads, where matrix products slow
    each other down (docs/dev/performance-log.md).
    """
    if ops.isfinite(loss):
        loss = loss + 0.0 * loss
    return loss
