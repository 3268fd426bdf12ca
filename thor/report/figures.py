"""The figures of a report, each as the text of an SVG element for an HTML page."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from thor.report.metrics_file import Line

#: The keys of an epoch or evaluation line that a report shows, and their column headings.
RESULTS = {
    "epoch": "epoch", "step": "step", "train_loss": "training loss", "test_loss": "test loss",
    "test_accuracy": "test accuracy", "test_top5": "among five", "test_error": "test squared error", "seconds": "s",
}  # fmt: skip
_METRICS = {"test_accuracy": ("test accuracy, %", 100.0), "test_error": ("test squared error", 1.0)}
_MARKS = {"UPDATE": ("o", 4.0, "renewed"), "KEEP": ("|", 8.0, "kept"), "STOP": ("X", 9.0, "stopped")}
_NAMED = 12  # layers that a legend has room for
_numbers = itertools.count()


def curves(lines: Sequence[Line]) -> str:
    """Training and test loss, and the metric of the test set, over epochs; "" if there is nothing to draw."""
    steps = [line for line in lines if line["kind"] == "step" and line["loss"] is not None]
    evaluations = [line for line in lines if line["kind"] in ("epoch", "eval") and "test_loss" in line]
    if not steps and not evaluations:
        return ""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _losses(left, steps, lines, evaluations)
    for key, (label, factor) in _METRICS.items():
        found = [line for line in evaluations if key in line]
        if found:
            right.plot([line["epoch"] for line in found], [factor * line[key] for line in found], "o-", markersize=3.5)
            right.set(xlabel="epoch", ylabel=label)
    right.grid(alpha=0.3)
    return _svg(figure)


def _losses(axes: Axes, steps: Sequence[Line], lines: Sequence[Line], evaluations: Sequence[Line]) -> None:
    """Plot the losses of single batches, of epochs and of the test set on one logarithmic axis."""
    epochs = [line for line in lines if line["kind"] == "epoch"]
    axes.plot([line["epoch"] for line in steps], [line["loss"] for line in steps], color="0.75", label="single batches")
    # The mean loss of an epoch is drawn at its middle, a test loss at its end.
    axes.plot([line["epoch"] - 0.5 for line in epochs], [line["train_loss"] for line in epochs], "o-", markersize=3.5,
              label="training, mean of an epoch")  # fmt: skip
    axes.plot([line["epoch"] for line in evaluations], [line["test_loss"] for line in evaluations], "s--",
              markersize=3.5, label="test")  # fmt: skip
    axes.set(xlabel="epoch", ylabel="loss", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)


def traces(decisions: Sequence[Line]) -> str:
    """The trace of each layer over steps, with a mark for each decision: renewed, kept or stopped."""
    layers = list(dict.fromkeys(line["layer"] for line in decisions))
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps["tab10" if len(layers) <= 10 else "viridis"].resampled(max(len(layers), 10))
    for number, layer in enumerate(layers):
        own = [line for line in decisions if line["layer"] == layer and line["trace"] > 0]
        axes.plot([d["step"] for d in own], [d["trace"] for d in own], color=colours(number), linewidth=0.9,
                  label=layer.replace("_", " _", 1) if layer[0] == "_" else layer)  # fmt: skip
        for decision, (marker, size, _) in _MARKS.items():
            at = [line for line in own if line["decision"] == decision]
            axes.plot([d["step"] for d in at], [d["trace"] for d in at], marker=marker, markersize=size,
                      linestyle="none", color=colours(number), markeredgewidth=1.5)  # fmt: skip
    axes.set(xlabel="step", ylabel="trace", yscale="log")
    axes.grid(alpha=0.3)
    marks = [Line2D([], [], marker=marker, markersize=size, linestyle="none", color="0.3", label=text)
             for marker, size, text in _MARKS.values()]  # fmt: skip
    shown = axes.get_legend_handles_labels()[0][:_NAMED]
    title = f"first {_NAMED} of {len(layers)} layers" if len(layers) > _NAMED else None
    axes.legend(handles=[*marks, *shown], loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, title=title)
    return _svg(figure)


def phases(sums: dict[str, Sequence[float]]) -> str:
    """A bar for the seconds of each phase; ``sums`` has (times, seconds) by phase."""
    ordered = sorted(((name, seconds) for name, (_, seconds) in sums.items()), key=lambda item: item[1])
    figure = Figure(figsize=(11, 0.6 + 0.32 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([name for name, _ in ordered], [seconds for _, seconds in ordered], color="tab:blue")
    axes.bar_label(bars, fmt="%.1f s", padding=4)
    axes.set(xlabel="seconds")
    axes.margins(x=0.12)
    axes.grid(alpha=0.3, axis="x")
    return _svg(figure)


def _svg(figure: Figure) -> str:
    """The figure as an <svg> element without prologue and metadata; its ids are unique among all figures."""
    text = io.StringIO()
    salt = f"thor-{next(_numbers)}"
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # matplotlib numbers groups anew in each figure, but an id must be unique on a page.
    svg = re.sub(r'id="([^"]+)"', rf'id="{salt}-\1"', svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{salt}-", svg)
