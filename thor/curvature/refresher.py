"""One candidate refresh, from fresh traces to adopted inverses, or eigenbases.

    fresh traces -> trace rule: UPDATE, KEEP or STOP for each layer -> invert the factors that update -> adopt

A layer adopts the results of both its factors or keeps both old ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from thor.curvature.damping import Damping
from thor.curvature.layer import Layer
from thor.curvature.refresh_job import RefreshJob, RefreshMethod
from thor.curvature.trace_rule import ACTIVE, STOPPED, Decision, RefreshRecord, TraceRule

logger = logging.getLogger("thor")


@dataclass
class LayerTable:
    """Host copies of the state that a candidate refresh reads and changes.

    Attributes:
        status: [layers], ACTIVE or STOPPED.
        refreshes: [layers], refreshes that the layer has adopted.
        kept: [layers], candidates at which the layer kept its inverse.
        traces: of each layer, the traces [2, copies] of A and of G that it last adopted.
        escalations: total number of blocks that were not positive definite and got more damping.
    """

    status: np.ndarray
    refreshes: np.ndarray
    kept: np.ndarray
    traces: list[np.ndarray]
    escalations: int


class RefreshState(Protocol):
    """Where the table is kept (:class:`thor.optimizer_state.OptimizerState`)."""

    def write_table(self, table: LayerTable) -> None:
        """Store a changed table."""


@dataclass
class Candidate:
    """A candidate refresh that has been decided.

    Attributes:
        step: the step that it belongs to.
        table: the state that it was decided by, and that it changes.
        fresh: for each layer, the traces [2, copies] of A and of G of its estimates.
        records: the decision for each layer.
        jobs: for each layer that updates, the work on its factors.
        finish: waits for the jobs' results.
    """

    step: int
    table: LayerTable
    fresh: dict[int, np.ndarray]
    records: dict[int, RefreshRecord]
    jobs: dict[int, tuple[RefreshJob, ...]]
    finish: Callable[[], None]


class Refresher:
    """Decides which layers refresh, and refreshes them."""

    def __init__(self, layers: Sequence[Layer], method: RefreshMethod):
        self.layers, self.method = layers, method
        self.history: list[RefreshRecord] = []
        self._reported: set[str] = set()  # layers that a warning has named as never called

    def begin(
        self, indices: Sequence[int], table: LayerTable, step: int, damping: Damping, rule: TraceRule,
        agree: Callable[[np.ndarray], np.ndarray], *, beside: bool = False,
    ) -> Candidate:  # fmt: skip
        """Decide for the layers ``indices``, and begin to compute; no layer changes before :meth:`finish`.

        ``agree`` maps this rank's traces to those that all ranks decide by. ``beside`` computes in a thread, from
        copies of the estimates.
        """
        fresh = self._fresh_traces(indices, agree)
        active = [i for i in fresh if table.status[i] == ACTIVE]
        unused = [i for i in active if not self.layers[i].used]  # their factors are unknown; they keep what they have
        if active == unused and not table.refreshes.any():
            raise RuntimeError(self._nothing_called())
        self._report_unused([i for i in unused if not table.refreshes[i]], step)
        records = {i: self._decide(step, damping, rule, i, fresh[i], table) for i in active if i not in unused}
        jobs = {i: self.layers[i].jobs(damping, fresh[i]) for i, r in records.items() if r.decision is Decision.UPDATE}
        finish = self.method.begin([job for of_layer in jobs.values() for job in of_layer], beside=beside)
        return Candidate(step, table, fresh, records, jobs, finish)

    def finish(self, candidate: Candidate, state: RefreshState) -> None:
        """Adopt what a candidate refresh has made, and store its decisions."""
        candidate.finish()
        table, records = candidate.table, candidate.records
        for i, jobs in candidate.jobs.items():
            if self._adopt(candidate.step, i, jobs, table):
                table.refreshes[i] += 1
                table.traces[i][:] = candidate.fresh[i]
            else:
                records[i] = replace(records[i], decision=Decision.KEEP)
        table.kept[[i for i, record in records.items() if record.decision is Decision.KEEP]] += 1
        table.status[[i for i, record in records.items() if record.decision is Decision.STOP]] = STOPPED
        state.write_table(table)
        self.history += records.values()

    def _fresh_traces(self, indices: Sequence[int], agree: Callable[[np.ndarray], np.ndarray]) -> dict[int, np.ndarray]:
        """The traces [2, copies] of A and of G of each layer's estimates."""
        own = [self.layers[i].traces() for i in indices]
        agreed = agree(np.concatenate(own)).astype(np.float32)
        parts = np.split(agreed, np.cumsum([len(part) for part in own])[:-1])
        return {i: part.reshape(2, -1) for i, part in zip(indices, parts, strict=True)}

    def _decide(
        self, step: int, damping: Damping, rule: TraceRule, index: int, fresh: np.ndarray, table: LayerTable
    ) -> RefreshRecord:
        """The rule's decision for one layer, from the adopted and the fresh trace of its damped Fisher block."""
        layer = self.layers[index]
        now = layer.damped_trace(damping, fresh)
        before = layer.damped_trace(damping, table.traces[index]) if table.refreshes[index] else None
        decision, change = rule.at(step).decide(before, now)
        if decision is Decision.STOP and not fresh[1].any():  # no gradient has reached it yet
            decision = Decision.KEEP
        return RefreshRecord(step, layer.name, now, change, decision)

    def _adopt(self, step: int, index: int, jobs: tuple[RefreshJob, ...], table: LayerTable) -> bool:
        """Commit a layer's new inverses, all of them or none; False if one could not be inverted."""
        name, escalated = self.layers[index].name, sum(job.escalated for job in jobs)
        if escalated:
            table.escalations += escalated
            logger.warning("step %d: %d blocks of layer %s were not positive definite and got more damping",
                           step, escalated, name)  # fmt: skip
        if any(job.failed for job in jobs):
            logger.warning("step %d: the factors of layer %s cannot be inverted or decomposed; it keeps what it has",
                           step, name)  # fmt: skip
            return False
        self.layers[index].adopt(jobs)
        return True

    def _nothing_called(self) -> str:
        names = [layer.name for layer in self.layers]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return (
            f"the forward pass has called none of the captured layers ({shown}), so there is no curvature: train the "
            f"network that THOR was made for, and make THOR after everything that rewrites its layers, as "
            f"ms.amp.auto_mixed_precision does"
        )

    def _report_unused(self, indices: Sequence[int], step: int) -> None:
        """Warn once for each layer that the network has never called."""
        for name in [self.layers[i].name for i in indices if self.layers[i].name not in self._reported]:
            self._reported.add(name)
            logger.warning("step %d: the network has not called layer %s so far, or the loss holds its output's "
                           "derivatives alone (its weights may be used elsewhere); it is updated like one not captured",
                           step, name)  # fmt: skip
