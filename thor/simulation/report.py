"""A simulation as a table, a figure and JSON, and its comparison with measured times."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from thor.simulation.simulate import NAIVE, Estimate, share_name

if TYPE_CHECKING:  # matplotlib takes long to import: only what draws a picture imports it
    from matplotlib.axes import Axes

FORMAT, VERSION = "thor-plan", 1
#: The kinds of step that can be measured; each names the property of Parts that predicts it.
STEPS = ("plain", "curvature", "refresh")
PARTS = {
    "compute": "forward, backward, update", "average_gradients": "average gradients", "precondition": "precondition",
    "spread_gradients": "spread preconditioned gradients", "gather_factors": "gather factors",
    "average_factors": "average factors", "invert": "invert", "exchange_inverses": "exchange inverses",
}  # fmt: skip


def fastest(estimates: Sequence[Estimate]) -> dict[int, Estimate]:
    """The fastest estimate per number of devices; the first of equal ones."""
    best: dict[int, Estimate] = {}
    for estimate in estimates:
        if estimate.devices not in best or estimate.step < best[estimate.devices].step:
            best[estimate.devices] = estimate
    return best


def table(estimates: Sequence[Estimate], batch: int) -> Table:
    """A table with a line per number of devices and strategy, the fastest in bold; ``batch`` is per device."""
    best = fastest(estimates)
    shown = Table(title="predicted times in ms, curvature state of the largest rank in MiB",
                  box=box.SIMPLE_HEAD, pad_edge=False,
                  caption="step: in the mean, with its share of curvature; bold: fastest")  # fmt: skip
    for name in ("devices", "strategy", "step", "plain", "curvature", "refresh", "state", "examples/s"):
        shown.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    for before, estimate in zip([None, *estimates], estimates, strict=False):
        if before is not None and before.devices != estimate.devices:
            shown.add_section()
        times = [estimate.step, *(getattr(estimate.parts, name) for name in STEPS)]
        shown.add_row(
            str(estimate.devices), estimate.strategy, *(milliseconds(seconds * 1e3) for seconds in times),
            f"{estimate.memory / 2**20:.1f}", f"{estimate.devices * batch / estimate.step:,.0f}",
            style="bold" if estimate is best[estimate.devices] else None,
        )  # fmt: skip
    return shown


def milliseconds(value: float) -> str:
    """Format milliseconds: two decimals below 1000, none above."""
    return f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def verdicts(estimates: Sequence[Estimate]) -> list[str]:
    """Sentences on the number of devices where each strategy is fastest, and on the time that less memory costs."""
    best = fastest(estimates)
    lines = []
    for strategy, run in itertools.groupby(best.values(), key=lambda estimate: estimate.strategy):
        winners = list(run)
        first, last = winners[0].devices, winners[-1].devices
        where = f"{first} devices" if first == last else f"{first} to {last} devices"
        by = "" if strategy == NAIVE else f", {_range([_lead(w, estimates) for w in winners])}"
        lines.append(f"{where}: {strategy} is fastest{by}")
    for devices, winner in best.items():
        lean = min(
            (e for e in estimates if e.devices == devices), key=lambda estimate: (estimate.memory, estimate.step)
        )
        if lean.memory < winner.memory:
            saved, more = (winner.memory - lean.memory) / 2**20, lean.step / winner.step - 1
            lines.append(f"{devices} devices: {lean.strategy} saves {saved:.1f} MiB a rank, for {more:.1%} of time")
    return lines


def _lead(winner: Estimate, estimates: Sequence[Estimate]) -> float:
    """The reduction of the mean step time relative to the naive strategy."""
    naive = next(e for e in estimates if e.devices == winner.devices and e.strategy == NAIVE)
    return 1 - winner.step / naive.step


def _range(leads: Sequence[float]) -> str:
    low, high = f"{min(leads):.1%}", f"{max(leads):.1%}"
    return f"{low if low == high else f'{low} to {high}'} below the naive way"


def comparison(estimates: Sequence[Estimate], measured: Sequence[Mapping[str, Any]]) -> Table:
    """A table of predicted and measured times with the relative error.

    Args:
        estimates: the predictions.
        measured: mappings ``{"devices": 2, "strategy": "all", "plain_ms": 210.0, ...}`` with any of ``plain_ms``,
            ``curvature_ms``, ``refresh_ms``.

    Raises:
        ValueError: for a measurement without a prediction, an unknown key or a time that is no positive number.
    """
    found = {(estimate.devices, estimate.strategy): estimate for estimate in estimates}
    shown = Table(title="predicted against measured, ms")
    for name in ("devices", "strategy", "step", "predicted", "measured", "error"):
        shown.add_column(name, justify="left" if name in ("strategy", "step") else "right")
    for line in measured:
        key = (line.get("devices"), line.get("strategy"))
        if type(key[0]) is int and isinstance(key[1], str) and any(key[0] == devices for devices, _ in found):
            key = (key[0], share_name(key[0], key[1]))
        if type(key[0]) is not int or not isinstance(key[1], str) or key not in found:  # "is int" excludes True
            raise ValueError(f"measured: nothing is predicted for {key[0]!r} devices with strategy {key[1]!r}; "
                             f"predicted are {', '.join(f'{d} {s}' for d, s in found)}")  # fmt: skip
        times = {name: value for name, value in line.items() if name not in ("devices", "strategy")}
        for name, value in times.items():
            kind = name.removesuffix("_ms")
            if kind not in STEPS or kind == name:
                raise ValueError(f"measured: {name!r} must be one of {', '.join(f'{each}_ms' for each in STEPS)}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
                raise ValueError(f"measured: {name} must be a positive number of milliseconds, but got {value!r}")
            predicted = getattr(found[key[0], key[1]].parts, kind) * 1e3
            shown.add_row(
                *map(str, key), kind, milliseconds(predicted), milliseconds(value), f"{predicted / value - 1:+.0%}"
            )
    return shown


def to_dict(estimates: Sequence[Estimate], about: Mapping[str, Any]) -> dict[str, Any]:
    """All estimates, in seconds and bytes, as JSON data; ``about`` holds the inputs they depend on."""
    rows = [asdict(estimate) | {"step": estimate.step} for estimate in estimates]
    return {"format": FORMAT, "version": VERSION, **about, "estimates": rows}


def draw(estimates: Sequence[Estimate], path: Path, title: str) -> None:
    """Where the time beyond forward, backward and update goes, and the step's time over devices."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6.2), layout="constrained")  # no pyplot: no display is looked for
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    _draw_parts(left, estimates)
    _draw_steps(right, estimates)
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _draw_parts(axes: Axes, estimates: Sequence[Estimate]) -> None:
    """A stacked bar for each strategy, in groups of devices."""
    from matplotlib import colormaps

    at: list[float] = []
    ticks: list[tuple[str, float]] = []
    place = 0.0
    for devices, run in itertools.groupby(estimates, key=lambda estimate: estimate.devices):
        start = place
        for _ in run:
            at.append(place)
            place += 1.0
        ticks.append((f"{devices} devices" if not ticks else str(devices), (start + place - 1) / 2))
        place += 0.8
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    bottom = [0.0] * len(estimates)
    for index, (name, label) in enumerate(list(PARTS.items())[1:]):
        heights = [getattr(estimate.per_step, name) * 1e3 for estimate in estimates]
        axes.bar(at, heights, 0.85, bottom=bottom, color=colours[index], label=label)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(at, [estimate.strategy for estimate in estimates], rotation=90, fontsize=8)
    for label, centre in ticks:
        axes.annotate(label, (centre, 1.0), xycoords=("data", "axes fraction"), xytext=(0, -4),
                      textcoords="offset points", ha="center", va="top", fontsize=9, fontweight="bold")  # fmt: skip
    axes.set_ylim(0, 1.14 * max(bottom) or 1.0)
    axes.set(ylabel="ms per step, in the mean", title="beyond forward, backward and update")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=4, fontsize=9)


def _draw_steps(axes: Axes, estimates: Sequence[Estimate]) -> None:
    """A line for each strategy; the fastest is marked."""
    from matplotlib.ticker import NullLocator

    for marker, strategy in zip(itertools.cycle("osD^vP*"), dict.fromkeys(e.strategy for e in estimates)):
        own = [estimate for estimate in estimates if estimate.strategy == strategy]
        style = "--" if strategy == NAIVE else "-"
        axes.plot([e.devices for e in own], [e.step * 1e3 for e in own], style, marker=marker, markersize=5,
                  color="0.4" if strategy == NAIVE else None, label=strategy)  # fmt: skip
    best = fastest(estimates)
    axes.plot(list(best), [estimate.step * 1e3 for estimate in best.values()], "o", markersize=13,
              markerfacecolor="none", color="black", label="fastest")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(list(best), [str(devices) for devices in best])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="devices", ylabel="ms", title="a step, in the mean")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=4, fontsize=9)
