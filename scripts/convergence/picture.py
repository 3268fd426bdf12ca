"""A task's results as a picture: time to target at the left, equal budget at the right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.convergence import measures
from scripts.convergence.results import Point, Results, Run
from scripts.convergence.rules import Task

TITLES = {
    "test_error": "test squared error an image",
    "test_accuracy": "test accuracy, %",
    "test_loss": "held-out loss",
}
SMALL = 8  # points, for a picture of 7 inches shown on 700 pixels
LEGEND_COLUMNS = 5
#: Parts of a panel, as the prefix of a line's gid, which the contender's name follows.
MEDIAN, CROSSING = "median:", "crossing:"


def draw(results: Results, name: str, path: Path) -> None:
    """Draw a task's picture into a file."""
    figure = of_task(results, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)


def of_task(results: Results, name: str) -> Figure:
    """The picture: a median curve with a band from the lowest to the highest seed; a dot where the target is reached.

    The dot is at the medians over seeds that the table has, and a median curve ends at the table's final value.
    """
    task, found = results.rules.tasks[name], results.tasks[name]
    figure = Figure(figsize=(7, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    colours = dict(zip(results.rules.contenders, matplotlib.colormaps["tab10"].colors, strict=False))  # type: ignore[attr-defined]
    for contender, each in found.contenders.items():
        own, colour = results.rules.contenders[contender], colours.get(contender, "black")
        # a contender with another one's values may lie on its curve, which dashes let show
        look = {"color": colour, "linestyle": "--" if own.tuned_as else "-", "label": own.title}
        _curve(left, task, each.to_target, lambda point: point.seconds, contender, look)
        _curve(right, task, each.equal_budget, lambda point: point.epoch, contender, look)
        if each.equal_budget and all(run.broke_down for run in each.equal_budget):
            right.plot([], [], **(look | {"label": f"{own.title} (broke down)"}))
        if each.to_target:
            cost = measures.to_target(task, each.to_target, found.target).with_compiling
            if math.isfinite(cost):
                place = {"markersize": 5, "markeredgecolor": "black", "markeredgewidth": 0.6, "zorder": 4}
                left.plot(
                    [cost], [scaled(task, found.target)], "o", color=colour, gid=f"{CROSSING}{contender}", **place
                )
    left.set_title("time to target", fontsize=SMALL + 1)
    right.set_title("equal budget", fontsize=SMALL + 1)
    left.set_xlabel("training time with compiling, seconds", fontsize=SMALL)
    right.set_xlabel("epoch", fontsize=SMALL)
    left.set_ylabel(TITLES[task.metric], fontsize=SMALL)
    for axes in (left, right):
        axes.axhline(scaled(task, found.target), color="0.3", linestyle=":", linewidth=1.2, label="target")
        axes.tick_params(labelsize=SMALL)
        axes.grid(alpha=0.3)
    _limit(left, task, found.target)
    labelled = {
        label: handle for axes in (left, right) for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        labelled.values(),
        labelled.keys(),
        loc="outside lower center",
        ncols=LEGEND_COLUMNS,
        fontsize=SMALL,
        frameon=False,
    )
    figure.suptitle(task.title, fontsize=SMALL + 1)
    return figure


def scaled(task: Task, value: float) -> float:
    """A value as the picture has it: in percent if it is an accuracy."""
    return 100 * value if task.higher_is_better else value


def _curve(
    axes: Axes, task: Task, runs: Sequence[Run], x: Callable[[Point], float], contender: str, look: dict[str, Any]
) -> None:  # fmt: skip
    """Draw the median over seeds and the band around it, where these are finite."""
    points = [(at, each) for at, each in measures.curve(task, runs, x) if math.isfinite(each.median)] if runs else []
    if not points:
        return
    places = [at for at, _ in points]
    medians = [scaled(task, each.median) for _, each in points]
    axes.plot(places, medians, linewidth=1.4, gid=f"{MEDIAN}{contender}", **look)
    low = [scaled(task, each.low) for _, each in points]
    high = [scaled(task, each.high) for _, each in points]
    if all(map(math.isfinite, low + high)):
        axes.fill_between(places, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _limit(axes: Axes, task: Task, target: float) -> None:
    """Limit the metric's axis to the ends of the curves and a range around the target.

    The first evaluations lie far outside of it.
    """
    lines = [line for each in axes.figure.axes for line in each.lines if str(line.get_gid()).startswith(MEDIAN)]
    values = [float(value) for line in lines for value in np.asarray(line.get_ydata())]
    ends = [float(np.asarray(line.get_ydata())[-1]) for line in lines]
    goal = scaled(task, target)
    if not values:
        return
    if task.higher_is_better:
        top, bottom = max(*values, goal), min(*values, goal)
        edge = max(0.3, 0.05 * (top - bottom))
        axes.set_ylim(max(bottom, min(*ends, goal - 6 * max(top - goal, 1.0))) - edge, top + edge)
    else:
        low, high = min(*values, goal), max(*values, goal)
        edge = 0.05 * (goal - low + 0.02 * goal)
        axes.set_ylim(low - edge, min(high, max(*ends, goal + 1.2 * max(goal - low, 0.3 * goal))) + edge)
