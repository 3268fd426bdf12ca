"""Moving averages of normalisation layers, which a forward pass moves before anybody knows whether it is finite."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

#: Steps from one copy to the next: by then an average of the usual momentum 0.9 has forgotten what it was.
EVERY = 100


class MovingAverages:
    """Every ``moving_mean`` and ``moving_variance`` of a network, and copies of them from some steps ago.

    A batch that is not finite would make them not finite for good: BatchNorm's kernel moves them in the forward pass,
    which no branch of a later graph takes back, and the network would train on and never evaluate again.
    """

    def __init__(self, net: nn.Cell):
        cells = [cell for _, cell in net.cells_and_names()]
        averages = [getattr(cell, name, None) for cell in cells for name in ("moving_mean", "moving_variance")]
        self._parameters = [each for each in averages if isinstance(each, Parameter)]
        self._copies: list[np.ndarray] = []
        self._age = 0

    def before_step(self) -> None:
        """Copy them now and then."""
        if self._age % EVERY == 0:
            fresh = [parameter.asnumpy().copy() for parameter in self._parameters]
            kept = self._copies or fresh  # of one that a micro-batch of a step under way has spoilt the copy before
            self._copies = [x if np.isfinite(x).all() else old for x, old in zip(fresh, kept, strict=True)]
        self._age += 1

    def forget(self) -> None:
        """Others have been loaded: copy these before the next step."""
        self._age, self._copies = 0, []

    def mend(self) -> None:
        """Bring those that are not finite back to their copies."""
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            if not np.isfinite(parameter.asnumpy()).all():
                ops.assign(parameter, Tensor(copy))
