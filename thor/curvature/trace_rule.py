"""The trace rule: which layers refresh their inverse, which keep it, which stop for good (pure host policy).

At each candidate refresh a layer compares the trace of its fresh Fisher block with that of the block it last adopted,

    Delta = |tr(F^k) - tr(F^adopted)| / tr(F^adopted),

both damped with the current damping (Chen et al., "THOR, Trace-based Hardware-driven Layer-Oriented Natural Gradient
Descent Computation", AAAI 2021):

    Delta >  update           UPDATE  adopt F^k and invert it
    stop <= Delta <= update   KEEP    go on with the adopted block and its inverse
    Delta <  stop             STOP    the adopted inverse stays for the rest of training

The adopted block may be several intervals old, so slow drift adds up and triggers in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from first_order.checks import check_int, number

#: Status of a layer: it takes part in candidate refreshes, or has stopped for the rest of training.
ACTIVE, STOPPED = 0, 1


class Decision(Enum):
    """What a candidate refresh decides for one layer."""

    UPDATE = "update"
    KEEP = "keep"
    STOP = "stop"


@dataclass(frozen=True)
class RefreshRecord:
    """One decision.

    At ``step``, ``layer`` had the damped trace ``trace``, which differs by ``change`` from the adopted one (None at the
    first candidate, which has nothing to compare with). What was to update and could not be inverted says KEEP.
    """

    step: int
    layer: str
    trace: float
    change: float | None
    decision: Decision


@dataclass(frozen=True, kw_only=True)
class TraceRule:
    """The two thresholds of the rule, and when it begins.

    Args:
        update: relative trace change above which a layer refreshes. 0 means no test at all: always refresh.
        stop: relative trace change below which a layer stops for good. 0 means that no layer ever stops.
        start: step of the first candidate that is tested; all before it refresh. Where candidates come every few steps
            at first, a trace that has hardly changed says nothing, and would stop layers that are about to wake up.
    """

    update: float = 0.01
    stop: float = 0.001
    start: int = 0

    def __post_init__(self) -> None:
        for name, value in (("update", self.update), ("stop", self.stop)):
            number(f"refresh threshold {name}", value, 0.0)
        if self.stop > self.update:
            raise ValueError(
                f"refresh threshold stop must be at most update, but got stop={self.stop} > update={self.update}"
            )
        check_int("refresh start", self.start, 0, hint="; it is the step of the first test")

    @classmethod
    def thor(cls, start: int = 0) -> TraceRule:
        """The paper's THOR: (0.01, 0), refresh by trace, never stop."""
        return cls(update=0.01, stop=0.0, start=start)

    @classmethod
    def thor_stop(cls, start: int = 0) -> TraceRule:
        """The paper's THOR_stop: (0.01, 0.001)."""
        return cls(update=0.01, stop=0.001, start=start)

    @classmethod
    def thor_nt(cls) -> TraceRule:
        """The paper's THOR_NT: no trace test, every candidate refreshes."""
        return cls(update=0.0, stop=0.0)

    def at(self, step: int) -> TraceRule:
        """The rule for a candidate at this step: this one from its start on, before it no test."""
        return self if step >= self.start else TraceRule.thor_nt()

    def decide(self, adopted: float | None, fresh: float) -> tuple[Decision, float | None]:
        """The decision and the relative change, from the adopted and the fresh damped trace (both positive)."""
        if adopted is None:
            return Decision.UPDATE, None
        change = abs(fresh - adopted) / adopted
        if self.update == 0 or change > self.update:
            return Decision.UPDATE, change
        if change < self.stop:
            return Decision.STOP, change
        return Decision.KEEP, change
