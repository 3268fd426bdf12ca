"""Results as Markdown tables: time to target, equal budget, what tuning buys."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from scripts.convergence import measures
from scripts.convergence.measures import EqualBudget, Spread, ToTarget
from scripts.convergence.results import Results, TaskResult
from scripts.convergence.rules import Rules, Task

MISSED = "not reached"


def markdown(results: Results) -> str:
    """All tables of all tasks."""
    parts = [of_task(results.rules, name, found) for name, found in results.tasks.items()]
    return "\n\n".join([measured_on(results), *parts]) + "\n"


def measured_on(results: Results) -> str:
    """The machine, in a sentence."""
    machine = ", ".join(f"{key} {value}" for key, value in results.machine.items())
    return f"Measured on: {machine}."


def of_task(rules: Rules, name: str, found: TaskResult) -> str:
    """The three tables of one task."""
    task = rules.tasks[name]
    by = "given by the rules"
    if found.set_by is not None:
        loose = f", loosened by {rules.target.slack:.0%}" if rules.target.slack else ""
        by = f"set by the trials of {rules.contenders[found.set_by].title}{loose}"
    parts = [f"**{task.title}.** Target: {value(task, found.target)}, {by}."]
    rows = {
        each: measures.to_target(task, found.contenders[each].to_target, found.target)
        for each in measures.measured(found, lambda part: part.to_target)
    }
    if rows:
        parts.append(_to_target(rules, task, rows, measures.timed_alone(found, rows)))
    budget = {
        each: measures.equal_budget(task, found.contenders[each].equal_budget)
        for each in measures.measured(found, lambda part: part.equal_budget)
    }
    if budget:
        parts.append(_equal_budget(rules, task, budget))
    parts.append(_tuning(rules, task, found))
    return "\n\n".join(parts)


def _to_target(rules: Rules, task: Task, rows: dict[str, ToTarget], alone: Collection[str]) -> str:
    """The table of time to target; medians over seeds, and ratios to the best of two groups.

    If some contenders, which ``alone`` names, were timed one run at a time, the others have no seconds.
    """
    timed = "seconds of one run at a time" if alone else "seconds as the runs took them"
    if alone:
        rows = {
            name: row if name in alone else replace(row, seconds=math.nan, with_compiling=math.nan)
            for name, row in rows.items()
        }
    groups = (rules.target.set_by, measures.first_order(rules))
    bases = {
        key: [measures.cheapest({name: getattr(row, key) for name, row in rows.items()}, group) for group in groups]
        for key in ("epochs", "seconds", "with_compiling")
    }
    titles = ", ".join(rules.contenders[name].title for name in groups[0])
    lines = [
        f"*Time to target*: medians over seeds, {timed}; in brackets the ratio to the best of {titles}, then to the "
        "best of all first-order optimizers. In bold: a goal that was missed.",
        "",
        "| optimizer | epochs | seconds | seconds with compiling | reached | refreshes, whole run | final value "
        "| peak, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        goals = task.goals_of(name)
        limits = {} if goals is None else goals.limits
        costs = {"epochs": 2, "seconds": _digits(row.seconds), "with_compiling": _digits(row.with_compiling)}
        cells = [
            rules.contenders[name].title,
            *(_cost(getattr(row, key), bases[key], digits, limits.get(key, ())) for key, digits in costs.items()),
            f"{row.reached} of {row.runs}",
            _refreshes(rules, name, row),
            value(task, row.final.median),
            _mib(row.peak),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _equal_budget(rules: Rules, task: Task, rows: dict[str, EqualBudget]) -> str:
    """The table of values after equally many epochs."""
    lines = [
        f"*Equal budget*: every optimizer for {task.epochs} epochs; medians over seeds, lowest to highest.",
        "",
        "| optimizer | final value | best value | refreshes | peak, MiB | broke down |",
        "|---|---|---|---|---|---|",
    ]
    others = [rows[name].final.median for name in measures.first_order(rules) if name in rows]
    for name, row in rows.items():
        final = _spread(task, row.final)
        if task.goals_of(name) and not all(measures.as_good(task, row.final.median, other) for other in others):
            final = f"**{final}**"
        cells = [
            rules.contenders[name].title, final, value(task, row.best.median),
            _refreshes(rules, name, row), _mib(row.peak), f"{row.broke_down} of {row.runs}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _tuning(rules: Rules, task: Task, found: TaskResult) -> str:
    """The table of what tuning buys."""
    lines = [
        f"*What tuning buys*: the first guess against the best of {rules.trials} trials, with the tuning seed.",
        "",
        "| optimizer | final value, first guess | best trial | epochs to target, first guess | best trial |",
        "|---|---|---|---|---|",
    ]
    for name, each in found.contenders.items():
        if each.trials:
            row = measures.tuning(task, each.trials, found.target)
            cells = [
                rules.contenders[name].title, value(task, row.first_final), value(task, row.best_final),
                _cost(row.first_epochs, (), 2), _cost(row.best_epochs, (), 2),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _refreshes(rules: Rules, name: str, row: ToTarget | EqualBudget) -> str:
    """How many inverses or eigenbases THOR computed; SOAP does not count its own."""
    counted = rules.contenders[name].optimizer == "thor" and row.refreshes is not None
    return f"{row.refreshes:.0f}" if counted else "-"


def value(task: Task, number: float) -> str:
    """A value of the metric: in percent if it is an accuracy."""
    if math.isinf(number):
        return "broke down"
    return f"{number:.2%}" if task.higher_is_better else f"{number:.3f}"


def _mib(count: int) -> str:
    """Bytes in MiB; a run that broke down told none."""
    return f"{count / 2**20:.0f}" if count else "-"


def _spread(task: Task, found: Spread) -> str:
    """The median, and in brackets the lowest and highest value; all of them may have broken down."""
    if all(map(math.isinf, (found.median, found.low, found.high))):
        return value(task, found.median)
    return f"{value(task, found.median)} ({value(task, found.low)} to {value(task, found.high)})"


def _digits(seconds: float) -> int:
    """Decimals of a number of seconds."""
    return 0 if seconds >= 10 else 1


def _cost(cost: float, bases: Sequence[float], digits: int, limits: Sequence[float | None] = ()) -> str:
    """A cost, with its ratios to finite bases; in bold what is above a limit. One that is no number is unknown."""
    if math.isnan(cost):
        return "-"
    if math.isinf(cost):
        return f"**{MISSED}**" if any(limits) else MISSED
    ratios = ["-" if math.isinf(base) else f"{cost / base:.2f}" for base in bases]
    for at, limit in enumerate(limits):
        if limit is not None and cost > limit * bases[at]:
            ratios[at] = f"**{ratios[at]}**"
    return f"{cost:.{digits}f}" + (f" ({', '.join(ratios)})" if ratios else "")
