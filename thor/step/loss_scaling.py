"""What a compiled graph does with the loss scale."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

from thor.runtime.graph_ops import over, times


def scaling(scaled):
    """In a graph: a loss times the scale, 1 / scale, and a tuple times that; nothing of it where no loss is scaled."""

    def up(loss, scale):
        if scaled:
            return loss * scale[0]
        if loss.dtype == ms.float16 or loss.dtype == ms.bfloat16:
            return loss.astype(ms.float32)  # as a scaled one
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
