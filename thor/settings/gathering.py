"""How often factors are gathered between two refreshes by default."""

from __future__ import annotations

#: Steps per refresh interval that gather factors for the running average, where ``factor_interval`` is not set.
GATHERS_PER_INTERVAL = 10


def default_factor_interval(interval: int) -> int:
    """The default ``factor_interval`` with a running average, in steps: a tenth of the refresh interval."""
    return max(1, interval // GATHERS_PER_INTERVAL)
