"""How results are judged: targets, the choice among trials, and medians over seeds. Pure functions of results.

A seed that misses the target has infinite costs, and one whose training broke down the worst value; medians are over
all seeds. So a median is finite if more than half of the seeds reach the target.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scripts.convergence.results import ContenderResult, Point, Run, TaskResult, Trial
from scripts.convergence.rules import Rules, Task


class NoTargetError(ValueError):
    """The trials that set the target are not finished, or all of them broke down."""


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of some values."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class ToTarget:
    """A contender's way to the target; medians over seeds, infinite if no more than half of them reach it.

    Attributes:
        epochs, seconds, with_compiling: Cost; `seconds` is without compilation.
        reached, runs: Number of seeds that reach the target, and of all.
        refreshes: Inverses or eigenbases that were computed until the run's end, of the runs that did not break down;
            None if all did.
        final: The last values.
        peak: Peak memory in bytes, the highest of all seeds.
    """

    epochs: float
    seconds: float
    with_compiling: float
    reached: int
    runs: int
    refreshes: float | None
    final: Spread
    peak: int


@dataclass(frozen=True)
class EqualBudget:
    """A contender after the task's full length.

    Attributes:
        final: The last values.
        best: The best values on the way, of which an early stop would keep one.
        refreshes: Inverses or eigenbases that were computed, as above.
        peak: Peak memory in bytes, the highest of all seeds.
        broke_down, runs: Number of seeds whose training broke down, and of all.
    """

    final: Spread
    best: Spread
    refreshes: float | None
    peak: int
    broke_down: int
    runs: int


@dataclass(frozen=True)
class Tuning:
    """What the search gained, with the tuning seed: the first guess against the best of all trials."""

    trials: int
    first_final: float
    best_final: float
    first_epochs: float
    best_epochs: float


def worst(task: Task) -> float:
    """The value of a run that broke down."""
    return -math.inf if task.higher_is_better else math.inf


def as_good(task: Task, value: float, other: float) -> bool:
    """True if a value is at least as good as another one."""
    return value >= other if task.higher_is_better else value <= other


def final(task: Task, run: Run) -> float:
    """The last value of a run."""
    return worst(task) if run.broke_down else run.points[-1].value


def best(task: Task, run: Run) -> float:
    """The best value of a run."""
    values = [point.value for point in run.points] or [worst(task)]
    return max(values) if task.higher_is_better else min(values)


def first_reached(task: Task, run: Run, target: float) -> Point | None:
    """The first evaluation that is at least as good as the target, or None."""
    return next((point for point in run.points if as_good(task, point.value, target)), None)


def epochs_to(task: Task, run: Run, target: float) -> float:
    """Epochs to the target; infinite if the run misses it."""
    point = first_reached(task, run, target)
    return math.inf if point is None else point.epoch


def loosened(task: Task, value: float, slack: float) -> float:
    """A value with the error or loss increased by a share."""
    return 1.0 - (1.0 - value) * (1.0 + slack) if task.higher_is_better else value * (1.0 + slack)


def target_of(rules: Rules, name: str, trials: Mapping[str, Sequence[Trial]]) -> tuple[float, str | None]:
    """A task's target and the contender whose trial set it: None if the rules give a number.

    Otherwise it is the best final value of the trials of all contenders in `target.set_by`, loosened by `target.slack`.
    """
    task = rules.tasks[name]
    if task.target is not None:
        return task.target, None
    setters = {each: [final(task, trial.run) for trial in trials.get(each, ())] for each in rules.target.set_by}
    lacking = [each for each, values in setters.items() if len(values) < rules.trials]
    if lacking:
        raise NoTargetError(f"{name}: {', '.join(lacking)} has not finished all trials, so that there is no target")
    choose = max if task.higher_is_better else min
    bests = {each: choose(values) for each, values in setters.items()}
    setter = choose(bests, key=lambda each: bests[each])
    if not math.isfinite(bests[setter]):
        raise NoTargetError(f"{name}: all trials of {', '.join(setters)} broke down, so that there is no target")
    return loosened(task, bests[setter], rules.target.slack), setter


def fastest(task: Task, trials: Sequence[Trial], target: float) -> int:
    """Index of the trial that reaches the target in the fewest epochs; if none does, of the one that ends best.

    Of equal ones the earlier one counts.
    """
    costs = [epochs_to(task, trial.run, target) for trial in trials]
    return costs.index(min(costs)) if math.isfinite(min(costs)) else ends_best(task, trials)


def ends_best(task: Task, trials: Sequence[Trial]) -> int:
    """Index of the trial with the best final value, of equal ones the earlier one."""
    values = [final(task, trial.run) for trial in trials]
    return values.index(max(values) if task.higher_is_better else min(values))


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest."""
    return Spread(statistics.median(values), min(values), max(values))


def timed_by(run: Run, timing: Run) -> Run:
    """A run with the seconds of another one that evaluates at the same steps, and so does the same work."""
    timed = {point.step: point for point in timing.points}
    if any(point.step not in timed for point in run.points):
        raise ValueError(f"seed {run.seed} evaluates at other steps than the run that was timed")
    points = [timed[point.step].model_copy(update={"value": point.value}) for point in run.points]
    return run.model_copy(update={"points": points, "timed_alone": True})


def to_target(task: Task, runs: Sequence[Run], target: float) -> ToTarget:
    """Judge a contender's runs to the target."""
    hits = [first_reached(task, run, target) for run in runs]

    def cost(of: Callable[[Point], float]) -> float:
        return statistics.median(math.inf if point is None else of(point) for point in hits)

    return ToTarget(
        epochs=cost(lambda point: point.epoch),
        seconds=cost(lambda point: point.without_compiling),
        with_compiling=cost(lambda point: point.seconds),
        reached=sum(point is not None for point in hits),
        runs=len(runs),
        refreshes=_refreshes(runs),
        final=spread([final(task, run) for run in runs]),
        peak=max(run.peak for run in runs),
    )


def equal_budget(task: Task, runs: Sequence[Run]) -> EqualBudget:
    """Judge a contender's runs of the full length."""
    return EqualBudget(
        final=spread([final(task, run) for run in runs]),
        best=spread([best(task, run) for run in runs]),
        refreshes=_refreshes(runs),
        peak=max(run.peak for run in runs),
        broke_down=sum(run.broke_down for run in runs),
        runs=len(runs),
    )


def _refreshes(runs: Sequence[Run]) -> float | None:
    """Median over the runs that did not break down; of the others it is unknown."""
    known = [run.refreshes for run in runs if not run.broke_down]
    return statistics.median(known) if known else None


def tuning(task: Task, trials: Sequence[Trial], target: float) -> Tuning:
    """Compare the first guess with the best of all trials."""
    chosen, first = trials[ends_best(task, trials)].run, trials[0].run
    return Tuning(
        trials=len(trials),
        first_final=final(task, first),
        best_final=final(task, chosen),
        first_epochs=epochs_to(task, first, target),
        best_epochs=min(epochs_to(task, trial.run, target) for trial in trials),
    )


def curve(task: Task, runs: Sequence[Run], x: Callable[[Point], float]) -> list[tuple[float, Spread]]:
    """The median curve of runs of one length: at each evaluation the median place on the x axis, and the values.

    A run that broke down has the worst value everywhere.
    """
    whole = [run for run in runs if not run.broke_down]
    lost = [worst(task)] * (len(runs) - len(whole))
    count = min((len(run.points) for run in whole), default=0)
    return [
        (
            statistics.median(x(run.points[index]) for run in whole),
            spread([*(run.points[index].value for run in whole), *lost]),
        )
        for index in range(count)
    ]


def cheapest(rows: Mapping[str, float], among: Sequence[str]) -> float:
    """The lowest finite cost among some contenders; infinite if there is none. A cost that is no number is unknown."""
    return min((rows[name] for name in among if name in rows and not math.isnan(rows[name])), default=math.inf)


def timed_alone(result: TaskResult, names: Iterable[str]) -> list[str]:
    """Those of the named contenders whose seconds were all taken one run at a time; none if no run was timed so.

    Runs that broke down have no seconds.
    """
    runs = {name: [run for run in result.contenders[name].to_target if run.points] for name in names}
    alone = [name for name, own in runs.items() if all(run.timed_alone for run in own)]
    return alone if any(runs[name] for name in alone) else []


def first_order(rules: Rules) -> list[str]:
    """Names of the contenders that use no curvature."""
    return [name for name, each in rules.contenders.items() if each.optimizer != "thor"]


def measured(result: TaskResult, part: Callable[[ContenderResult], Sequence[object]]) -> list[str]:
    """Names of the contenders that have runs in a part of the results."""
    return [name for name, each in result.contenders.items() if part(each)]
