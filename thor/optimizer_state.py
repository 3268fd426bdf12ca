"""The named Parameters of a THOR optimizer: curvature, clocks, counters, loss scale.

Their names start with "thor.". A checkpoint of the optimizer contains all of them and the inner optimizer's Parameters:
everything that training depends on besides the weights. There are two clocks: the next gathering of factors is at step
``next_gather``, the next candidate refresh at step ``next_refresh``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from first_order.cells import set_unregistered
from thor.curvature.layer import Layer
from thor.curvature.refresher import LayerTable
from thor.curvature.trace_rule import ACTIVE
from thor.runtime.parameters import float_parameter, int_parameter, read, write
from thor.settings.loss_scale import DynamicLossScale

logger = logging.getLogger("thor")

NONE = -1  # in place of a step


class Moments(Protocol):
    """Moments of weights outside captured layers (:class:`thor.step.adam_moments.AdamMoments`)."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All Parameters, for checkpoints."""


class StepCounts(nn.Cell):
    """Counts of steps and the live loss scale, for any optimizer; :class:`OptimizerState` describes the Parameters.

    The last step may be uncounted, while a device still computes whether it was finite. Whoever needs exact counts
    calls :meth:`settle`.
    """

    _count: Callable[[], None] | None = None  # counts the last step, if it is uncounted
    loads = 0  # how often a step has noticed that state was loaded

    def __init__(self, loss_scale: float):
        super().__init__(auto_prefix=False)
        self.step_count = int_parameter("step", 0)
        self.scale = float_parameter("loss_scale", loss_scale)
        self.good_steps = int_parameter("good_steps", 0)
        self.bad_steps = int_parameter("bad_steps", 0)
        self.skipped_steps = int_parameter("skipped_steps", 0)

    @property
    def step(self) -> int:
        """Number of steps done, without skipped ones."""
        self.settle()
        return read(self.step_count)

    @property
    def in_graphs(self) -> tuple[Parameter, ...]:
        """The Parameters that compiled graphs read and write."""
        return ()

    @property
    def expected_step(self) -> int:
        """The step if an uncounted one was finite: never less than :attr:`step`, and never waits for a device."""
        return read(self.step_count) + self.uncounted

    @property
    def uncounted(self) -> bool:
        """True if the last step has not been counted."""
        return self._count is not None

    def count_later(self, count: Callable[[], None]) -> None:
        """Leave the last step uncounted; ``count`` counts it."""
        set_unregistered(self, _count=count)

    def settle(self) -> None:
        """Count the last step, if it is uncounted."""
        if (count := self._count) is not None:
            set_unregistered(self, _count=None)
            count()

    def parameters_and_names(self, name_prefix: str = "", expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """As of any Cell, with the last step counted: checkpoints are made of it."""
        self.settle()
        return super().parameters_and_names(name_prefix, expand)

    @property
    def loss_scale(self) -> float:
        """The live loss scale."""
        return float(self.scale.asnumpy()[0])

    def finished(self, finite: bool, rule: DynamicLossScale | None, max_bad_steps: int) -> bool:
        """Count the step and adjust the loss scale; returns True if ``max_bad_steps`` in a row were not finite."""
        self.settle()
        if finite:
            write(self.step_count, self.step + 1)
            if read(self.bad_steps):
                write(self.bad_steps, 0)
            if rule is not None:
                good = read(self.good_steps) + 1
                if good >= rule.window:
                    write(self.scale, rule.grown(self.loss_scale))
                    good = 0
                write(self.good_steps, good)
            return False
        write(self.skipped_steps, read(self.skipped_steps) + 1)
        if rule is not None:
            write(self.good_steps, 0)
            old = self.loss_scale
            fallen = rule.fallen(old)
            if fallen is not None:
                write(self.scale, fallen)
                logger.info("step %d: overflow at loss scale %g, skipped; the scale falls", self.step, old)
                return False
        write(self.bad_steps, in_a_row := read(self.bad_steps) + 1)
        logger.warning("step %d: loss or gradients are not finite, step skipped (%d in a row)", self.step, in_a_row)
        return in_a_row >= max_bad_steps


class OptimizerState(StepCounts):
    """Everything besides the weights and the inner optimizer's moments that training depends on.

    ==============  ===========  ==============================================================  =======================
    Parameter       shape, unit  meaning                                                         written by
    ==============  ===========  ==============================================================  =======================
    plan            [bytes]      block plan and layers, see checkpoint.py                        made once
    curvature       by layer     estimates, inverses or bases (curvature/factor.py), moments     Estimate; Layer.adopt
    moments         by weight    Adam's, of weights outside captured layers (adam_moments.py)    EigenUpdate
    step_count      [1] steps    steps done; skipped ones do not count                           finished
    next_refresh    [1] step     of the next candidate refresh                                   schedule_refresh
    next_gather     [1] step     of the next gathering of factors                                schedule_gathering
    next_adoption   [1] step     of the adoption of bases that are being computed; NONE if       schedule_adoption,
                                 none are; with eigenbases only                                  adopted
    candidate       [1] step     of the candidate refresh that they belong to, likewise          the same two
    average_weight  [1]          sum of the weights in the running averages: bias correction     schedule_gathering
    status          [layers]     ACTIVE or STOPPED                                               write_table
    refreshes       [layers]     refreshes adopted                                               write_table
    kept            [layers]     candidates at which the inverse was kept                        write_table
    traces          [2 copies]   of the adopted factors A and G, layer after layer               write_table
    scale           [1]          the live loss scale                                             finished
    good_steps      [1] steps    consecutive finite steps since the loss scale last changed      finished
    bad_steps       [1] steps    consecutive steps that were not finite, all skipped             finished
    skipped_steps   [1] steps    all skipped steps                                               finished
    escalations     [1] blocks   not positive definite, so that they got more damping            write_table
    ==============  ===========  ==============================================================  =======================

    The plan is the first Parameter and so is loaded first: another optimizer's checkpoint is refused before anything
    has changed.
    """

    def __init__(
        self, layers: Sequence[Layer], plan: Parameter, loss_scale: float, moments: Moments | None
    ):  # fmt: skip
        nn.Cell.__init__(self, auto_prefix=False)  # Parameters are made here, in the order that a checkpoint has
        self.copies = tuple(layer.copies for layer in layers)
        self.plan = plan
        self.curvature = ParameterTuple([p for layer in layers for p in layer.parameters])
        self.moments = ParameterTuple(() if moments is None else moments.parameters)
        self.step_count = int_parameter("step", 0)
        self.next_refresh = int_parameter("next_refresh", 0)
        self.next_gather = int_parameter("next_gather", 0)
        if moments is not None:
            self.next_adoption = int_parameter("next_adoption", NONE)
            self.candidate = int_parameter("candidate", NONE)
        self.may_lag = moments is not None
        self.average_weight = float_parameter("average_weight", 0.0)
        self.status = int_parameter("status", np.full(len(layers), ACTIVE))
        self.refreshes = int_parameter("refreshes", np.zeros(len(layers)))
        self.kept = int_parameter("kept", np.zeros(len(layers)))
        self.traces = float_parameter("traces", np.zeros(2 * sum(self.copies)))
        self.scale = float_parameter("loss_scale", loss_scale)
        self.good_steps = int_parameter("good_steps", 0)
        self.bad_steps = int_parameter("bad_steps", 0)
        self.skipped_steps = int_parameter("skipped_steps", 0)
        self.escalations = int_parameter("escalations", 0)

    @property
    def in_graphs(self) -> tuple[Parameter, ...]:
        """Curvature, and Adam's moments."""
        return (*self.curvature, *self.moments)

    @property
    def active_layers(self) -> list[int]:
        """Indices of the layers that have not stopped."""
        return [i for i, status in enumerate(self.status.asnumpy()) if status == ACTIVE]

    @property
    def gathers_now(self) -> bool:
        """True if the coming step gathers factors; for an uncounted step before it, if that was finite."""
        return self.expected_step >= min(read(self.next_refresh), read(self.next_gather)) and bool(self.active_layers)

    @property
    def refreshes_now(self) -> bool:
        """True if the coming step is a candidate refresh; for an uncounted step before it, if that was finite."""
        return self.expected_step >= read(self.next_refresh) and bool(self.active_layers)

    @property
    def adopts_now(self) -> bool:
        """True if the coming step first adopts new bases; for an uncounted step before it, if that was finite."""
        return self.may_lag and NONE < read(self.next_adoption) <= self.expected_step

    @property
    def candidate_step(self) -> int:
        """The step of the candidate refresh whose bases are being computed; NONE if there is none."""
        return read(self.candidate) if self.may_lag else NONE

    def gain(self, indices: Sequence[int], decay: float, is_empty: Callable[[int], bool]) -> tuple[Tensor, np.float32]:
        """The gain of fresh statistics, one number per layer (0 if it has stopped), and the averages' new weight.

        mean_k = mean_{k-1} + (x_k - mean_{k-1}) / w_k with w_k = decay w_{k-1} + 1: the exponential running average
        with bias correction. The gain is 1 / w_k. The averages of all layers have one weight. A layer that comes later
        has a first gain of 1: its average, which ``is_empty`` knows, holds no statistics yet.
        """
        weight = np.float32(decay) * self.average_weight.asnumpy()[0] + np.float32(1)
        status, refreshes = self.status.asnumpy(), self.refreshes.asnumpy()
        late = [weight > 1 and refreshes[i] == 0 and is_empty(i) for i in indices]
        gains = np.where(late, np.float32(1), np.float32(1) / weight)
        return Tensor(np.where(status[list(indices)] == ACTIVE, gains, 0).astype(np.float32)), weight

    def schedule_gathering(self, weight: np.float32, interval: int) -> None:
        """Store the running averages' new weight, and schedule the next gathering ``interval`` steps from now."""
        write(self.average_weight, weight)
        write(self.next_gather, self.step + interval)

    def schedule_refresh(self, interval: int) -> None:
        """Schedule the next candidate refresh ``interval`` steps from now."""
        write(self.next_refresh, self.step + interval)

    def schedule_adoption(self, step: int, lag: int) -> None:
        """Adopt what the candidate refresh of ``step`` makes before step ``step + lag``."""
        write(self.next_adoption, step + lag)
        write(self.candidate, step)

    def adopted(self) -> None:
        """Note that no bases are being computed."""
        write(self.next_adoption, NONE)
        write(self.candidate, NONE)

    def table(self) -> LayerTable:
        """Host copies of the state that a candidate refresh reads and changes."""
        status, refreshes, kept, traces = (
            p.asnumpy().copy() for p in (self.status, self.refreshes, self.kept, self.traces)
        )
        parts = np.split(traces, 2 * np.cumsum(self.copies)[:-1])
        return LayerTable(status, refreshes, kept, [part.reshape(2, -1) for part in parts], read(self.escalations))

    def write_table(self, table: LayerTable) -> None:
        """Store a table that a candidate refresh has changed."""
        for target, value in (
            (self.status, table.status), (self.refreshes, table.refreshes), (self.kept, table.kept),
            (self.traces, np.concatenate([part.reshape(-1) for part in table.traces])),
        ):  # fmt: skip
            write(target, value)
        if table.escalations != read(self.escalations):
            write(self.escalations, table.escalations)
