"""The damping of a layer, and its split between the two factors.

The functions work entry by entry: traces are numbers, or arrays with an entry for each group of a convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, repr=False)
class Damping:
    """The damping of a step.

    Attributes:
        value: what is added to the Fisher block of each layer, in the unit of its eigenvalues; or, if ``relative``, its
            share of their mean, which has no unit and stays the same if the loss is scaled.
    """

    value: float
    relative: bool = False

    def __repr__(self) -> str:
        return f"{self.value}" + (" of the mean eigenvalue" if self.relative else "")

    def of(self, trace_a: Any, trace_g: Any, dim_a: int, dim_g: int) -> Any:
        """What is added to the Fisher block of a layer: ``value``, or ``value`` (tr A / dim A) (tr G / dim G).

        If the mean eigenvalue of the block is zero, it is ``value``.
        """
        if not self.relative:
            return self.value
        with np.errstate(all="ignore"):  # the product may underflow to 0, or overflow
            found = self.value * (np.asarray(trace_a, float) / dim_a) * (np.asarray(trace_g, float) / dim_g)
        return np.where((found > 0) & np.isfinite(found), found, self.value)


def pi_split(damping: Any, trace_a: Any, trace_g: Any, dim_a: int, dim_g: int) -> tuple[Any, Any]:
    """Return ``(a, g)`` with ``a * g = damping``: a is added to the diagonal of A, g to the diagonal of G.

    a = pi sqrt(damping), g = sqrt(damping) / pi, pi^2 = (tr A / dim A) / (tr G / dim G): both factors are damped in
    proportion to their own scale (Martens & Grosse 2015, eq. 6.3). If a trace is zero, pi is 1.
    """
    root = np.sqrt(damping)
    with np.errstate(all="ignore"):  # the scales may underflow to 0
        scale_a, scale_g = np.asarray(trace_a, float) / dim_a, np.asarray(trace_g, float) / dim_g
        ratio = np.where((scale_a > 0) & (scale_g > 0), scale_a / scale_g, 1.0)
    pi = np.sqrt(np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0))
    return pi * root, root / pi


def damped_trace(damping: Any, trace_a: Any, trace_g: Any, dim_a: int, dim_g: int) -> Any:
    """The trace of the damped Fisher block: tr((A + a I) (x) (G + g I)) = (tr A + a dim A)(tr G + g dim G).

    tr F + ``damping * dim A * dim G`` would be dominated by its second term late in training, and the trace rule would
    stop layers that still change.
    """
    a, g = pi_split(damping, trace_a, trace_g, dim_a, dim_g)
    with np.errstate(all="ignore"):
        return (trace_a + a * dim_a) * (trace_g + g * dim_g)
