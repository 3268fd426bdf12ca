"""Results of runs: best value, and epochs and seconds to a target. Only `read_outcome` reads files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.convergence.tasks import Task
from scripts.run_folder.metrics_recorder import SUMMARY, read_metrics
from thor.report.metrics_file import Line
from thor.runtime.json_files import parse


class NoTargetError(ValueError):
    """No optimizer that sets the target has a finished run."""


@dataclass(frozen=True)
class Outcome:
    """One finished run.

    Attributes:
        contender: Name of the contender.
        seed: Seed of the run.
        evaluations: The lines of the run's metrics that have the task's metric. ``seconds`` includes compilation, which
            took ``compiling`` seconds.
        refreshes: Inverses computed, summed over layers.
        peak: Peak memory of the process, in bytes.
    """

    contender: str
    seed: int
    evaluations: tuple[Line, ...]
    refreshes: int
    peak: int


@dataclass(frozen=True)
class Row:
    """A contender over its seeds. The *setter* is the optimizer that set the target.

    Attributes:
        values, finals: For each seed, the best and the last value of the metric.
        epochs, steps, seconds: Cost to the target, a mean over the seeds that reached it; None if none did. ``seconds``
            is without compilation.
        seconds_with_compiling: The same with compilation.
        reached: Number of seeds that reached the target.
        refreshes: Mean number of inverses computed.
        peak: Peak memory in bytes, maximum over the seeds.
        own_epochs, own_seconds: Cost to the setter's best value with the same seed, as a ratio to the setter's cost; a
            mean over the seeds that reached that value, None if none did.
        own_reached: Number of seeds in that mean.
        runs: Number of runs, including those that broke down.
    """

    contender: str
    values: tuple[float, ...]
    finals: tuple[float, ...]
    epochs: float | None
    steps: float | None
    seconds: float | None
    seconds_with_compiling: float | None
    reached: int
    refreshes: float
    peak: int
    own_epochs: float | None
    own_seconds: float | None
    own_reached: int
    runs: int

    @property
    def value(self) -> float:
        """The mean of the best values."""
        return statistics.fmean(self.values)

    @property
    def final(self) -> float:
        """The mean of the last values."""
        return statistics.fmean(self.finals)

    @property
    def spread(self) -> float:
        """The standard deviation of the best values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def read_outcome(folder: Path, contender: str, seed: int, metric: str) -> Outcome | None:
    """Read a run's outcome; None if the run is not finished."""
    path = folder / SUMMARY
    if not path.is_file():
        return None
    try:
        summary = parse(path.read_text(encoding="utf-8"))
        if not summary["finished"]:
            return None
        refreshes, peak = summary["refreshes"]["update"], summary["memory"]["peak"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: no summary of a run ({why}); remove the run's folder and go on") from error
    lines = [line for line in read_metrics(folder) if line["kind"] in ("epoch", "eval")]
    lines = [line for line in lines if metric in line and "compiling" in line]
    if not lines:
        why = f"the run is finished, but its lines have no {metric} or not what was compiled"
        raise ValueError(f"{folder}: {why}; remove the folder and go on")
    return Outcome(contender, seed, tuple(lines), refreshes, peak)


def best(task: Task, outcome: Outcome) -> float:
    """The best value of a run."""
    values = [line[task.metric] for line in outcome.evaluations]
    return max(values) if task.higher_is_better else min(values)


def first_reached(task: Task, outcome: Outcome, target: float) -> Line | None:
    """The first evaluation that is at least as good as the target, or None."""
    sign = 1.0 if task.higher_is_better else -1.0
    return next((line for line in outcome.evaluations if sign * line[task.metric] >= sign * target), None)


def without_compiling(line: Line) -> float:
    """Seconds of training up to an evaluation, without compilation."""
    return float(line["seconds"] - line["compiling"])


def first_of_best(task: Task, values: Sequence[float | None]) -> int:
    """Index of the best run of a search. None is a run that broke down; if all did, the index is 0."""
    sign = -1.0 if task.higher_is_better else 1.0
    costs = [math.inf if value is None else sign * value for value in values]
    return costs.index(min(costs))


def target_of(task: Task, outcomes: Sequence[Outcome], broken: Mapping[str, int]) -> tuple[str, float]:
    """The optimizer that sets the target, the one with the best mean of best values, and that mean.

    An optimizer with a run that broke down is left out, since the mean over its other seeds would be biased.
    """
    found: dict[str, float] = {}
    for contender in task.contenders:
        values = [best(task, each) for each in outcomes if each.contender == contender.name]
        if values and contender.sets_target and not broken.get(contender.name):
            found[contender.name] = statistics.fmean(values)
    if not found:
        how = " with every seed" if broken else ""
        raise NoTargetError(f"{task.name}: none of {task.setters} has finished{how}, so that there is no target")
    name = (max if task.higher_is_better else min)(found, key=lambda each: found[each])
    return name, found[name]


def rows(
    task: Task, outcomes: Sequence[Outcome], broken: Mapping[str, int], setter: str, target: float
) -> list[Row]:  # fmt: skip
    """One row for each contender that has finished runs, in the task's order.

    The target is a mean over the setter's seeds, so some of these seeds may miss it. Costs are means over the seeds
    that reached the target, and ``reached`` is their number. If seeds scatter, this favours the setter, of which only
    the better seeds count. Therefore each seed is also compared with the setter's best value for that seed (same
    initial weights and batch order), which the setter reaches by definition.
    """
    setters = {each.seed: each for each in outcomes if each.contender == setter}
    found = []
    for contender in task.contenders:
        own = [each for each in outcomes if each.contender == contender.name]
        if not own:
            continue
        hits = [line for each in own if (line := first_reached(task, each, target)) is not None]
        pairs = [pair for each in own if each.seed in setters and (pair := _pair(task, each, setters[each.seed]))]
        found.append(
            Row(
                contender.name,
                tuple(best(task, each) for each in own),
                tuple(each.evaluations[-1][task.metric] for each in own),
                _mean([line["epoch"] for line in hits]),
                _mean([line["step"] for line in hits]),
                _mean([without_compiling(line) for line in hits]),
                _mean([line["seconds"] for line in hits]),
                len(hits),
                statistics.fmean([each.refreshes for each in own]),
                max(each.peak for each in own),
                _mean([epochs for epochs, _ in pairs]),
                _mean([seconds for _, seconds in pairs]),
                len(pairs),
                len(own) + broken.get(contender.name, 0),
            )
        )
    return found


def _pair(task: Task, outcome: Outcome, setter: Outcome) -> tuple[float, float] | None:
    """Epochs and seconds of a run to the best value of the setter's run with the same seed, as ratios to the setter's.

    None if the run does not reach that value.
    """
    own = best(task, setter)
    base, line = first_reached(task, setter, own), first_reached(task, outcome, own)
    if base is None or line is None:
        return None
    return line["epoch"] / base["epoch"], without_compiling(line) / without_compiling(base)


def _mean(values: Sequence[float]) -> float | None:
    """The mean, or None of an empty sequence."""
    return statistics.fmean(values) if values else None
