"""Moving averages of normalisation layers, restored after a forward pass that was not finite."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

#: Steps from one copy to the next. An average with the usual momentum 0.9 has forgotten its value after so many steps.
EVERY = 100


class MovingAverages:
    """Every ``moving_mean`` and ``moving_variance`` of a network, with copies from an earlier step.

    Without the copies, one non-finite batch would spoil them for good: BatchNorm's kernel updates them in the forward
    pass, before the finite check. The network would train on, but could not be evaluated any more.
    """

    def __init__(self, net: nn.Cell):
        cells = [cell for _, cell in net.cells_and_names()]
        averages = [getattr(cell, name, None) for cell in cells for name in ("moving_mean", "moving_variance")]
        self._parameters = [each for each in averages if isinstance(each, Parameter)]
        self._copies: list[np.ndarray] = []
        self._age = 0

    def before_step(self) -> None:
        """Copy the averages every ``EVERY`` steps."""
        if self._age % EVERY == 0:
            fresh = [parameter.asnumpy().copy() for parameter in self._parameters]
            kept = self._copies or fresh  # an earlier micro-batch may have spoilt an average
            self._copies = [x if np.isfinite(x).all() else old for x, old in zip(fresh, kept, strict=True)]
        self._age += 1

    def forget(self) -> None:
        """Drop the copies, because averages were loaded; the next step makes new copies."""
        self._age, self._copies = 0, []

    def mend(self) -> None:
        """Restore the averages that are not finite from their copies."""
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            if not np.isfinite(parameter.asnumpy()).all():
                ops.assign(parameter, Tensor(copy))
