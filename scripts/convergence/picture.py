"""Results as a Markdown table and as a picture, over epochs and over seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.convergence.results import Outcome, Row, without_compiling
from scripts.convergence.tasks import Task

TITLES = {"test_error": "test squared error an image", "test_accuracy": "test accuracy", "test_loss": "held-out loss"}
POINTS = 200  # points of a mean curve


def markdown(task: Task, rows: Sequence[Row], broken: Mapping[str, int], setter: str, target: float) -> str:
    """Return the table, followed by a line for each optimizer whose runs broke down.

    Ratios are relative to `setter`, the optimizer that set the target.
    """
    base = next(row for row in rows if row.contender == setter)
    lines = [
        f"**{task.title}.** Target: {_shown(task, target)}, the mean of {setter}'s best values.",
        "",
        "| optimizer | best value | final value | epochs to target | steps | seconds | with compiling | reached | "
        "seed by seed | inverses | peak, MiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        value = f"{_shown(task, row.value)} ± {_shown(task, row.spread)}"
        cells = [
            row.contender, value, _shown(task, row.final), _ratio(row.epochs, base.epochs, 2),
            _ratio(row.steps, None, 0), _ratio(row.seconds, base.seconds, 0),
            _ratio(row.seconds_with_compiling, base.seconds_with_compiling, 0), f"{row.reached} of {row.runs}",
            _seed_by_seed(row), f"{row.refreshes:.0f}", f"{row.peak / 2**20:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for name, count in broken.items():
        lines += ["", f"{name}: {count} of its runs broke down (loss or gradients not finite)."]
    return "\n".join(lines)


def _shown(task: Task, value: float) -> str:
    return f"{value:.2%}" if task.higher_is_better else f"{value:.3f}"


def _ratio(value: float | None, base: float | None, digits: int) -> str:
    """Format a number, followed by its ratio to the base if there is one."""
    if value is None:
        return "not reached"
    return f"{value:.{digits}f}" + (f" ({value / base:.2f} x)" if base else "")


def _seed_by_seed(row: Row) -> str:
    """Format the epochs and seconds to the setter's best value with the same seed, as ratios to the setter's."""
    if row.own_epochs is None or row.own_seconds is None:
        return "not reached"
    return f"{row.own_epochs:.2f} x, {row.own_seconds:.2f} x ({row.own_reached} of {row.runs})"


def draw(task: Task, outcomes: Sequence[Outcome], target: float, path: Path) -> None:
    """Draw the metric over epochs and over seconds without compilation: each seed thin, the mean over seeds thick."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    names = [each.name for each in task.contenders if any(o.contender == each.name for o in outcomes)]
    colours = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
    for axes, key in zip(figure.subplots(1, 2), ("epoch", "seconds"), strict=True):
        for colour, name in zip(colours, names, strict=False):
            _curves(axes, task, [o for o in outcomes if o.contender == name], key, name, colour)
        axes.axhline(target, color="0.3", linestyle=":", linewidth=1.2)
        axes.annotate("target", (1.0, target), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
        axes.set(xlabel="epoch" if key == "epoch" else "training time without compiling, seconds")
        axes.set_ylabel(TITLES[task.metric])
        axes.grid(alpha=0.3)
        _limit(axes, task, outcomes, target)
    figure.axes[0].legend(frameon=False)
    figure.suptitle(task.title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _curves(axes: Axes, task: Task, outcomes: Sequence[Outcome], key: str, name: str, colour: object) -> None:
    curves = []
    for outcome in outcomes:
        x = [without_compiling(line) if key == "seconds" else line[key] for line in outcome.evaluations]
        y = [line[task.metric] for line in outcome.evaluations]
        axes.plot(x, y, color=colour, alpha=0.25, linewidth=0.8)
        curves.append((x, y))
    end = min(x[-1] for x, _ in curves)
    grid = np.linspace(max(x[0] for x, _ in curves), end, POINTS)
    mean = np.mean([np.interp(grid, x, y) for x, y in curves], 0)
    axes.plot(grid, mean, color=colour, linewidth=1.8, label=name)


def _limit(axes: Axes, task: Task, outcomes: Sequence[Outcome], target: float) -> None:
    """Limit the metric's axis to the range around the target; the first evaluations lie far outside of it."""
    values = [line[task.metric] for outcome in outcomes for line in outcome.evaluations]
    if task.higher_is_better:
        top = max(values)
        axes.set_ylim(target - 6 * max(top - target, 0.01), top + 0.003)
    else:
        low = min(values)
        axes.set_ylim(low - 0.05 * (target - low + 0.02 * target), target + 1.2 * max(target - low, 0.3 * target))
