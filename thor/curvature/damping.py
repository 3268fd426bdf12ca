"""The damping of a layer, split between its two factors."""

from __future__ import annotations

import math


def pi_split(damping: float, trace_a: float, trace_g: float, dim_a: int, dim_g: int) -> tuple[float, float]:
    """Return ``(a, g)`` with ``a * g = damping``: a is added to the diagonal of A, g to the diagonal of G.

    a = pi sqrt(damping), g = sqrt(damping) / pi, pi^2 = (tr A / dim A) / (tr G / dim G): both factors are damped in
    proportion to their own scale (Martens & Grosse 2015, eq. 6.3). If a trace is zero, pi is 1.
    """
    root = math.sqrt(damping)
    scale_a, scale_g = trace_a / dim_a, trace_g / dim_g  # may underflow to 0
    ratio = scale_a / scale_g if scale_a > 0 and scale_g > 0 else 1.0
    pi = math.sqrt(ratio) if math.isfinite(ratio) and ratio > 0 else 1.0
    return pi * root, root / pi


def damped_trace(damping: float, trace_a: float, trace_g: float, dim_a: int, dim_g: int) -> float:
    """The trace of the damped Fisher block: tr((A + a I) (x) (G + g I)) = (tr A + a dim A)(tr G + g dim G).

    tr F + ``damping * dim A * dim G`` would be dominated by its second term late in training, and the trace rule would
    stop layers that still change.
    """
    a, g = pi_split(damping, trace_a, trace_g, dim_a, dim_g)
    return (trace_a + a * dim_a) * (trace_g + g * dim_g)
