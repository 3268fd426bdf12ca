"""How often factors are gathered between two refreshes, unless told."""

from __future__ import annotations

#: Of the steps between two refreshes, how many gather factors for the running average.
GATHERS_PER_INTERVAL = 10


def gathered_every(interval: int) -> int:
    """Steps from one gathering of factors to the next, for an average, unless told: a tenth of the interval."""
    return max(1, interval // GATHERS_PER_INTERVAL)
