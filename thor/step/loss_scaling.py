"""Loss scaling in compiled graphs."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

from thor.runtime.graph_ops import over, times


def scaling(scaled):
    """Functions for graphs: ``up`` scales a loss, ``inverse`` is 1 / scale, ``down`` multiplies a tuple by a factor.

    If the loss is not ``scaled``, they change no value.
    """

    def up(loss, scale):
        if scaled:
            return loss * scale[0]
        if loss.dtype == ms.float16 or loss.dtype == ms.bfloat16:
            return loss.astype(ms.float32)  # the type of a scaled loss
        return loss

    def inverse(scale):
        if not scaled:
            return 1.0
        return 1.0 / scale[0]

    def down(values, factor):
        if not scaled:
            return values
        return over(ops.partial(times, factor), values)

    return up, inverse, down
