"""A picture of runs side by side: python scripts/plot.py RUN_FOLDER ... --out curves.png."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib  # noqa: E402

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from scripts.common.arguments import picture_to_write  # noqa: E402
from scripts.common.errors import reporting_write_errors, run_program  # noqa: E402
from scripts.run_folder.evaluations import METRICS_OF_TEST, common_metric, evaluations  # noqa: E402
from scripts.run_folder.metrics_recorder import METRICS, read_metrics  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402

Lines = list[dict[str, Any]]

MARKS = {"UPDATE": ("o", 5.0), "KEEP": ("|", 9.0), "STOP": ("X", 10.0)}  # marker, size
STYLES = ("-", "--", ":", "-.")
X_AXES = (("epoch", "epoch"), ("seconds", "training time, seconds"))
SMOOTHING = 0.7  # share of the past in the running mean of the step losses


def plot(folders: Sequence[Path], path: Path) -> None:
    """Draw loss and test metric over epochs and seconds; below, the layers' traces with their refresh decisions."""
    runs = {name: read_metrics(folder) for name, folder in zip(short_names(folders), folders, strict=True)}
    empty = [str(folder / METRICS) for folder, lines in zip(folders, runs.values(), strict=True) if not lines]
    if empty:
        raise UserError(f"{', '.join(empty)}: missing, or without a complete line")
    refreshed = {name: lines for name, lines in runs.items() if _lines_of_kind(lines, "refresh")}
    rows = 2 + len(refreshed)
    figure = pyplot.figure(figsize=(11, 3.6 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    for column, (x, label) in enumerate(X_AXES):
        _losses(figure.add_subplot(grid[0, column]), runs, x, label)
        _scores(figure.add_subplot(grid[1, column]), runs, x, label)
    for row, (name, lines) in enumerate(refreshed.items(), start=2):
        _traces(figure.add_subplot(grid[row, :]), name, _lines_of_kind(lines, "refresh"))
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """Write a figure to a file and close it."""
    with reporting_write_errors(path, "the runs are as they were"):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    pyplot.close(figure)


def short_names(folders: Sequence[Path]) -> list[str]:
    """Names of the folders, relative to their common parent; UserError if a folder is given twice."""
    whole = [folder.resolve() for folder in folders]
    if len(set(whole)) < len(whole):
        raise UserError("a run is given twice")
    common = os.path.commonpath([path.parent for path in whole])
    return [os.path.relpath(path, common) for path in whole]


def _lines_of_kind(lines: Lines, kind: str) -> Lines:
    return [line for line in lines if line["kind"] == kind]


def _losses(axes: Axes, runs: dict[str, Lines], x: str, label: str) -> None:
    """Draw the training loss, a running mean over batches."""
    for number, (name, lines) in enumerate(runs.items()):
        steps = _lines_of_kind(lines, "step")
        losses = _smoothed([line["loss"] for line in steps])
        axes.plot([line[x] for line in steps], losses, STYLES[number % 4], label=_shown(name), linewidth=1.6)
    axes.set_yscale("log")
    axes.set(xlabel=label, ylabel="training loss", title="Training loss")
    _tidy(axes)


def _smoothed(values: Sequence[float]) -> list[float]:
    """A running mean with bias correction; values that are not finite, from skipped steps, are left out."""
    total, weight, means = 0.0, 0.0, []
    for value in values:
        if math.isfinite(value):
            total = SMOOTHING * total + value
            weight = SMOOTHING * weight + 1.0
        means.append(total / weight if weight else math.nan)
    return means


def _shown(name: str) -> str:
    """A name for a legend, from which matplotlib drops names that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def _scores(axes: Axes, runs: dict[str, Lines], x: str, label: str) -> None:
    """Draw the test accuracy, or the squared error of a reconstruction, at each evaluation."""
    tested = {name: evaluations(lines) for name, lines in runs.items()}
    key = common_metric(tested) or "test_accuracy"
    metric = METRICS_OF_TEST[key]
    for number, (name, lines) in enumerate(tested.items()):
        found = [line for line in lines if key in line]
        scores = [metric.factor * line[key] for line in found]
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.6}
        axes.plot([line[x] for line in found], scores, STYLES[number % 4], label=_shown(name), **style)
    axes.set(xlabel=label, ylabel=metric.title, title=metric.title.partition(",")[0])
    if x == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _tidy(axes)


def draw_scores(runs: dict[str, Lines], path: Path) -> None:
    """Draw the metric of the test set over epochs and over seconds, side by side."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    for axes, (x, label) in zip((left, right), X_AXES, strict=True):
        _scores(axes, runs, x, label)
    _save(figure, path)


def _traces(axes: Axes, name: str, decisions: Lines) -> None:
    """Draw the trace of each layer over steps, with a mark for each refresh decision."""
    layers = list(dict.fromkeys(line["layer"] for line in decisions))
    colours = pyplot.get_cmap("tab10" if len(layers) <= 10 else "viridis", max(len(layers), 10))
    for number, layer in enumerate(layers):
        own = [line for line in decisions if line["layer"] == layer and line["trace"] > 0]
        style: dict[str, Any] = {"color": colours(number), "linewidth": 1.0, "label": _shown(layer)}
        axes.plot([d["step"] for d in own], [d["trace"] for d in own], **style)
        for decision, (marker, size) in MARKS.items():
            at = [line for line in own if line["decision"] == decision]
            style = {
                "marker": marker,
                "markersize": size,
                "linestyle": "none",
                "color": colours(number),
                "markeredgewidth": 1.8,
            }
            axes.plot([d["step"] for d in at], [d["trace"] for d in at], **style)
    axes.set_yscale("log")
    axes.set(xlabel="step", ylabel="trace of the layer's factor pair", title=f"{name}: refresh decisions of each layer")
    axes.grid(alpha=0.3)
    marks = [
        Line2D([], [], marker=marker, markersize=size, linestyle="none", color="0.3", label=decision)
        for decision, (marker, size) in MARKS.items()
    ]
    shown = axes.get_legend_handles_labels()[0][:12]
    axes.legend(handles=[*marks, *shown], loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=10, frameon=False)


def _tidy(axes: Axes) -> None:
    """Add a grid and a legend."""
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=10, loc="best")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="plot.py", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--out", type=picture_to_write, default="curves.png")
    options = parser.parse_args(arguments)
    plot(options.folders, options.out)
    print(options.out)
    return 0


if __name__ == "__main__":
    run_program(main)
