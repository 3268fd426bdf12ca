"""What the rules ask for: the number of runs and the hours that they may take, before any of them begins."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.convergence import search
from scripts.convergence.rules import LENGTH, Range, Rules


@dataclass(frozen=True)
class Part:
    """The runs of a task.

    Attributes:
        trials: Runs of the search.
        tests: Runs with the test seeds, at most: both comparisons may choose the same settings.
        core_hours: Estimated time on one core.
    """

    trials: int
    tests: int
    core_hours: float


def plan(rules: Rules, tasks: Sequence[str], names: Sequence[str]) -> dict[str, Part]:
    """The runs of each task with some contenders."""
    return {task: _part(rules, task, names) for task in tasks}


def total(parts: Mapping[str, Part]) -> Part:
    """The runs of all tasks together."""
    each = parts.values()
    return Part(sum(p.trials for p in each), sum(p.tests for p in each), sum(p.core_hours for p in each))


def _part(rules: Rules, name: str, names: Sequence[str]) -> Part:
    task = rules.tasks[name]
    trials, seconds = 0, 0.0
    for contender in rules.tuned(name, names):
        for values in search.trials(rules, name, contender):
            trials += 1
            seconds += _seconds(rules, name, contender, search.epochs_of(task, values))
    seeds = len(rules.test_seeds)
    for contender in names:
        # which length reaches the target first is not known yet: the mean of all
        lengths = rules.space(name, contender).get(LENGTH, [1.0])
        shares = [lengths.low, lengths.high] if isinstance(lengths, Range) else lengths
        for epochs in (statistics.fmean(shares) * task.epochs, task.epochs):
            seconds += seeds * _seconds(rules, name, contender, epochs)
    return Part(trials, 2 * seeds * len(names), seconds / 3600)


def _seconds(rules: Rules, task: str, contender: str, epochs: float) -> float:
    """Estimated seconds of a run on one core."""
    own = rules.contenders[contender]
    return own.start_seconds + epochs * rules.tasks[task].seconds_per_epoch * own.cost


def shown(parts: dict[str, Part], jobs: int) -> str:
    """The plan as a Markdown table."""
    lines = ["| task | trials | test runs, at most | hours on one core |", "|---|---|---|---|"]
    for task, part in parts.items():
        lines.append(f"| {task} | {part.trials} | {part.tests} | {part.core_hours:.1f} |")
    whole = total(parts)
    lines.append(f"| all | {whole.trials} | {whole.tests} | {whole.core_hours:.1f} |")
    if jobs > 1:
        lines += ["", f"With {jobs} runs at a time on as many cores: about {whole.core_hours / jobs:.1f} hours."]
    return "\n".join(lines)
