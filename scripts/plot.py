"""A picture of runs side by side: python scripts/plot.py RUN_FOLDER ... --out curves.png."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib  # noqa: E402

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from scripts.errors import UserError, run_program  # noqa: E402
from scripts.recorder import read_metrics  # noqa: E402

Lines = list[dict[str, Any]]

MARKS = {"UPDATE": ("o", 5.0), "KEEP": ("|", 9.0), "STOP": ("X", 10.0)}  # marker, size
STYLES = ("-", "--", ":", "-.")
SMOOTHING = 0.7  # share of the past in the running mean of the step losses


def plot(folders: Sequence[Path], path: Path) -> None:
    """Loss and accuracy over epochs and over seconds; below, each layer's trace with its refresh decisions."""
    runs = {folder.name: read_metrics(folder) for folder in folders}
    empty = [str(folder) for folder in folders if not runs[folder.name]]
    if empty:
        raise UserError(f"no metrics.jsonl in {', '.join(empty)}")
    refreshed = {name: lines for name, lines in runs.items() if _of(lines, "refresh")}
    rows = 2 + len(refreshed)
    figure = pyplot.figure(figsize=(11, 3.6 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    for column, (x, label) in enumerate((("epoch", "epoch"), ("seconds", "training time, seconds"))):
        _losses(figure.add_subplot(grid[0, column]), runs, x, label)
        _scores(figure.add_subplot(grid[1, column]), runs, x, label)
    for row, (name, lines) in enumerate(refreshed.items(), start=2):
        _traces(figure.add_subplot(grid[row, :]), name, _of(lines, "refresh"))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _of(lines: Lines, kind: str) -> Lines:
    return [line for line in lines if line["kind"] == kind]


def _losses(axes: Axes, runs: dict[str, Lines], x: str, label: str) -> None:
    """Training loss (running mean of single batches)."""
    for number, (name, lines) in enumerate(runs.items()):
        steps = _of(lines, "step")
        losses = _smoothed([line["loss"] for line in steps])
        axes.plot([line[x] for line in steps], losses, STYLES[number % 4], label=name, linewidth=1.6)
    axes.set_yscale("log")
    axes.set(xlabel=label, ylabel="training loss", title="Training loss")
    _tidy(axes)


def _smoothed(values: Sequence[float]) -> list[float]:
    """A running mean, unbiased at its beginning."""
    total, weight, means = 0.0, 0.0, []
    for value in values:
        total = SMOOTHING * total + value
        weight = SMOOTHING * weight + 1.0
        means.append(total / weight)
    return means


def _scores(axes: Axes, runs: dict[str, Lines], x: str, label: str) -> None:
    """Test accuracy, or the squared error of a reconstruction, after each epoch."""
    title = "Test accuracy, %"
    for number, (name, lines) in enumerate(runs.items()):
        epochs = [line for line in _of(lines, "epoch") if "test_loss" in line]
        key, factor = (
            ("test_accuracy", 100.0) if any("test_accuracy" in line for line in epochs) else ("test_error", 1.0)
        )
        title = title if key == "test_accuracy" else "Test squared error an image"
        scores = [factor * line[key] for line in epochs]
        axes.plot([line[x] for line in epochs], scores, STYLES[number % 4], marker="o", label=name, linewidth=1.6)
    axes.set(xlabel=label, ylabel=title, title=title.partition(",")[0])
    if x == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _tidy(axes)


def _traces(axes: Axes, name: str, decisions: Lines) -> None:
    """Trace of each layer over steps; a mark says what was decided."""
    layers = list(dict.fromkeys(line["layer"] for line in decisions))
    colours = pyplot.get_cmap("tab10" if len(layers) <= 10 else "viridis", max(len(layers), 10))
    for number, layer in enumerate(layers):
        own = [line for line in decisions if line["layer"] == layer and line["trace"] > 0]
        axes.plot(
            [d["step"] for d in own], [d["trace"] for d in own], color=colours(number), linewidth=1.0, label=layer
        )
        for decision, (marker, size) in MARKS.items():
            at = [line for line in own if line["decision"] == decision]
            style: dict[str, Any] = {
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
    """Grid, and a legend where it hides least."""
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=10, loc="best")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="plot.py", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--out", type=Path, default=Path("curves.png"))
    options = parser.parse_args(arguments)
    plot(options.folders, options.out)
    print(options.out)
    return 0


if __name__ == "__main__":
    run_program(main)
