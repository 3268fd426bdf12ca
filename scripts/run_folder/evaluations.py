"""Evaluations on the test set in a run's metrics, and the metric by which runs are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from thor.report.metrics_file import Line
from thor.runtime.errors import UserError


class Metric(NamedTuple):
    """How a metric of the test set is displayed."""

    title: str
    factor: float
    higher_is_better: bool

    def shown(self, value: float) -> str:
        """Format a value."""
        return f"{value:.2%}" if self.higher_is_better else f"{value:.4g}"


# Metrics by their names in a metrics file; a run has one of them.
METRICS_OF_TEST = {
    "test_accuracy": Metric("Test accuracy, %", 100.0, True),
    "test_error": Metric("Test squared error an image", 1.0, False),
}


def evaluations(lines: Iterable[Line]) -> list[Line]:
    """Return the lines with results on the test set."""
    return [line for line in lines if line["kind"] in ("epoch", "eval") and "test_loss" in line]


def metric_of(lines: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the name of the metric that lines of one run have; None if they have none."""
    return next((name for line in lines for name in METRICS_OF_TEST if name in line), None)


def common_metric(runs: Mapping[str, Iterable[Mapping[str, Any]]]) -> str | None:
    """Return the name of the metric of several runs, by their names; None if no run has one.

    Raises:
        UserError: If two runs have different metrics.
    """
    found: dict[str, str] = {}
    for name, lines in runs.items():
        if (own := metric_of(lines)) is not None:
            found.setdefault(own, name)
    if len(found) > 1:
        told = ", ".join(f"{metric} of {name}" for metric, name in found.items())
        raise UserError(f"the runs have different metrics, {told}: give runs of one task")
    return next(iter(found), None)
