"""The damping of a layer, split between its two factors.

The functions work entry by entry: traces are numbers, or arrays with an entry for each group of a convolution.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def pi_split(damping: float, trace_a: Any, trace_g: Any, dim_a: int, dim_g: int) -> tuple[Any, Any]:
    """Return ``(a, g)`` with ``a * g = damping``: a is added to the diagonal of A, g to the diagonal of G.

    a = pi sqrt(damping), g = sqrt(damping) / pi, pi^2 = (tr A / dim A) / (tr G / dim G): both factors are damped in
    proportion to their own scale (Martens & Grosse 2015, eq. 6.3). If a trace is zero, pi is 1.
    """
    root = math.sqrt(damping)
    with np.errstate(all="ignore"):  # the scales may underflow to 0
        scale_a, scale_g = np.asarray(trace_a, float) / dim_a, np.asarray(trace_g, float) / dim_g
        ratio = np.where((scale_a > 0) & (scale_g > 0), scale_a / scale_g, 1.0)
    pi = np.sqrt(np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0))
    return pi * root, root / pi


def damped_trace(damping: float, trace_a: Any, trace_g: Any, dim_a: int, dim_g: int) -> Any:
    """The trace of the damped Fisher block: tr((A + a I) (x) (G + g I)) = (tr A + a dim A)(tr G + g dim G).

    tr F + ``damping * dim A * dim G`` would be dominated by its second term late in training, and the trace rule would
    stop layers that still change.
    """
    a, g = pi_split(damping, trace_a, trace_g, dim_a, dim_g)
    with np.errstate(all="ignore"):
        return (trace_a + a * dim_a) * (trace_g + g * dim_g)
