"""Candidate refreshes of a THOR: at once, or beside plain steps.

The host finds eigenbases by LAPACK. While an accelerator computes, its cores are idle, so that the bases of a candidate
are found beside the plain steps that follow, and adopted some steps later:

    step t        gather factors, decide by the trace rule, begin to decompose copies of the blocks
    t to t + lag  plain steps with the bases that the layers have
    step t + lag  wait for the new bases, if they are not there yet, and adopt them

No factors are gathered between t and t + lag. So a checkpoint from between holds the estimates of step t, from which
the same decisions and bases are made anew after it was loaded. The first refreshes of a growing interval follow each
other at once and leave no plain steps between; these are made at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from mindspore import Tensor

from thor.curvature.refresher import Candidate
from thor.optimizer import THOR
from thor.runtime import device
from thor.step.layer_update import LayerUpdate

#: Plain steps, at most, from a candidate refresh to the adoption of what it has made.
LONGEST_LAG = 10


class Refreshing:
    """Makes the candidate refreshes of a training step.

    Args:
        optimizer: the optimizer.
        update: what moves the weights by the results.

    Attributes:
        beside: whether what a candidate makes is computed beside plain steps.
        sent: bytes that this rank sent for the last candidate refresh.
    """

    def __init__(self, optimizer: THOR, update: LayerUpdate):
        self.optimizer, self.update = optimizer, update
        self.beside = optimizer.refresher.method.beside_steps and device.leaves_host_idle()
        self.sent = 0
        self._pending: Candidate | None = None

    @property
    def layers(self) -> list[int]:
        """Indices of the layers that gather: they have not stopped, and their weights are not all frozen.

        Nor is a BatchNorm among them that normalises with its moving statistics now.
        """
        frozen, weights_at, layers = set(self.update.frozen), self.update.weights_at, self.optimizer.captured
        active = self.optimizer.own_state.active_layers
        return [i for i in active if not frozen.issuperset(weights_at[i]) and not layers[i].has_moving_statistics]

    def gain(self, indices: Sequence[int]) -> tuple[Tensor, np.float32]:
        """The gain of fresh statistics of the layers ``indices``, and the averages' new weight."""
        layers, decay = self.optimizer.captured, self.optimizer.options.factor_decay
        return self.optimizer.own_state.gain(indices, decay, lambda i: layers[i].is_empty)

    def refresh_if_due(self) -> None:
        """Make a candidate refresh, or begin it."""
        optimizer, state = self.optimizer, self.optimizer.own_state
        if not state.refreshes_now:
            return
        step, options = state.step, optimizer.options
        interval = int(options.interval(step))
        lag = min(LONGEST_LAG, interval, options.gather_interval(step)) if self.beside else 0
        self.sent = 0
        candidate = self._begun(step, beside=lag > 1)
        state.schedule_refresh(interval)
        if lag > 1:
            self._pending = candidate
            state.schedule_adoption(step, lag)
        else:
            self._finish(candidate)

    def adopt_if_due(self) -> bool:
        """Adopt what the last candidate refresh has made; True if there was something.

        It is made anew after a load, and if another step of the same optimizer began it.
        """
        state = self.optimizer.own_state
        if not state.adopts_now:
            return False
        step, pending, self._pending = state.candidate_step, self._pending, None
        if pending is not None and pending.step == step:
            self._finish(pending)
        elif self.layers:
            self._finish(self._begun(step, beside=False))
        state.adopted()
        return True

    def forget(self) -> None:
        """Forget what is being computed: another state was loaded."""
        self._pending = None

    def _begun(self, step: int, *, beside: bool) -> Candidate:
        """Decide which layers refresh, and begin to compute.

        All ranks decide by rank 0's traces, because sums of the same numbers may differ in the last bit between
        processors.
        """
        optimizer, options, ranks = self.optimizer, self.optimizer.options, self.optimizer.ranks
        table, agree = optimizer.own_state.table(), np.asarray if ranks is None else ranks.of_first
        with self._counted():
            return optimizer.refresher.begin(
                self.layers, table, step, options.damping_at(step), options.refresh, agree, beside=beside
            )

    def _finish(self, candidate: Candidate) -> None:
        """Adopt what a candidate has made."""
        with self._counted():
            self.optimizer.refresher.finish(candidate, self.optimizer.own_state)
        self.update.renew_groups(self.optimizer.own_state.loads)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the bytes that this rank sends meanwhile."""
        ranks = self.optimizer.ranks
        before = 0 if ranks is None else ranks.bytes
        yield
        self.sent += 0 if ranks is None else ranks.bytes - before
