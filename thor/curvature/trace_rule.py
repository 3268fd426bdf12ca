"""The trace rule decides which layers refresh their inverse, keep it, or stop for good (pure host policy).

At each candidate refresh a layer compares the trace of its fresh Fisher block with that of the block it last adopted,

    Delta = |tr(F^k) - tr(F^adopted)| / tr(F^adopted),

both damped with the current damping (Chen et al., "THOR, Trace-based Hardware-driven Layer-Oriented Natural Gradient
Descent Computation", AAAI 2021):

    Delta >  update           UPDATE  adopt F^k and invert it
    stop <= Delta <= update   KEEP    keep the adopted block and its inverse
    Delta <  stop             STOP    keep the adopted inverse for the rest of training

The adopted block may be several intervals old, so that a slow drift adds up and triggers a refresh in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from first_order.checks import check_int, number

#: Status of a layer: it takes part in candidate refreshes, or has stopped for the rest of training.
ACTIVE, STOPPED = 0, 1


class Decision(Enum):
    """The decision for one layer at a candidate refresh."""

    UPDATE = "update"
    KEEP = "keep"
    STOP = "stop"


@dataclass(frozen=True)
class RefreshRecord:
    """One decision of the trace rule.

    Attributes:
        step: step of the candidate refresh.
        layer: name of the layer.
        trace: trace of the layer's fresh, damped Fisher block.
        change: its relative difference from the adopted trace; None if no block has been adopted yet, or one whose
            trace is 0.
        decision: KEEP also for a layer that was to update but could not be inverted.
    """

    step: int
    layer: str
    trace: float
    change: float | None
    decision: Decision


@dataclass(frozen=True, kw_only=True)
class TraceRule:
    """The two thresholds of the rule, and the step from which it tests.

    Args:
        update: relative trace change above which a layer refreshes. 0 means no test at all: always refresh.
        stop: relative trace change below which a layer stops for good. 0 means that no layer ever stops.
        start: step from which candidates are tested; at every earlier candidate all layers refresh. Between candidates
            that are only a few steps apart a trace hardly changes, and a test could stop layers that have yet to learn.
            None means that THOR chooses: with a :class:`thor.GrowingInterval` the step at which the interval reaches
            the memory of the factors' running average, 1 / (1 - factor_decay) steps; with any other interval 0.
    """

    update: float = 0.01
    stop: float = 0.001
    start: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("update", self.update), ("stop", self.stop)):
            number(f"refresh threshold {name}", value, 0.0)
        if self.stop > self.update:
            raise ValueError(
                f"refresh threshold stop must be at most update, but got stop={self.stop} > update={self.update}"
            )
        if self.start is not None:
            check_int("refresh start", self.start, 0, hint="; it is the step of the first test")

    @classmethod
    def thor(cls, start: int | None = None) -> TraceRule:
        """The paper's THOR: (0.01, 0), refresh by trace, never stop."""
        return cls(update=0.01, stop=0.0, start=start)

    @classmethod
    def thor_stop(cls, start: int | None = None) -> TraceRule:
        """The paper's THOR_stop: (0.01, 0.001)."""
        return cls(update=0.01, stop=0.001, start=start)

    @classmethod
    def thor_nt(cls) -> TraceRule:
        """The paper's THOR_NT: no trace test, every candidate refreshes."""
        return cls(update=0.0, stop=0.0)

    def at(self, step: int) -> TraceRule:
        """The rule for a candidate at ``step``: this one from ``start`` on, :meth:`thor_nt` before."""
        return self if step >= (self.start or 0) else TraceRule.thor_nt()

    def decide(self, adopted: float | None, fresh: float) -> tuple[Decision, float | None]:
        """The decision and the relative change, from the adopted and the fresh damped trace (neither is negative).

        An adopted trace of 0, of a layer that no gradient had reached, has nothing to compare with.
        """
        if not adopted:
            return Decision.UPDATE, None
        change = abs(fresh - adopted) / adopted
        if self.update == 0 or change > self.update:
            return Decision.UPDATE, change
        if change < self.stop:
            return Decision.STOP, change
        return Decision.KEEP, change
