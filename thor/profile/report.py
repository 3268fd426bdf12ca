"""A profile as a terminal report and as a figure like the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table

from thor.curvature.method_names import EIGENBASIS
from thor.profile.layer_plan import choose_per_layer
from thor.profile.profile_file import Profile

if TYPE_CHECKING:  # matplotlib takes long to import: only what draws a picture imports it
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

PREDICTOR = (
    "Trust the error most, then the cosine: on Fashion-MNIST's autoencoder their means ranked splits and sizes as "
    "training did (rank correlation 0.90 and 0.83), while the spectral loss, blind to what stands beside the blocks, "
    "did not (-0.02; docs/results/block-sizes.md)."
)
KEPT_COLOR, TIME_COLOR = "#1f77b4", "#d95f02"


def show(profile: Profile, console: Console, interval: int = 100, budget: float = float("inf")) -> None:
    """Print the report. ``interval``: steps between refreshes; ``budget``: most seconds of a refresh."""
    console.print(Group(*_parts(profile, interval, budget)))


def _parts(profile: Profile, interval: int, budget: float) -> list[RenderableType]:
    environment = profile.environment
    parts: list[RenderableType] = [
        f"[bold]{profile.settings.get('network', 'network')}[/bold]: {len(profile.layers)} layers, "
        f"{len(profile.factors)} factors, largest {max(f.dim for f in profile.factors)}",
        f"{environment['device']} ({environment['machine']}, {environment['cores']} cores), "
        f"MindSpore {environment['mindspore']}, {_made(profile)}",
        f"data: {profile.settings.get('source', 'unknown')}, {profile.settings.get('batches', '?')} batches",
    ]
    parts.append(_curves_table(profile, interval))
    parts += _notes(profile)
    if profile.settings.get("details"):
        parts += [_splits_table(profile), PREDICTOR]
    parts += _plan_lines(profile, budget)
    return parts


def _made(profile: Profile) -> str:
    """What a refresh makes, and how."""
    what = "eigenbases by" if profile.of == EIGENBASIS else "inverse"
    return f"{what} {profile.environment['inverse']}"


def _curves_table(profile: Profile, interval: int) -> Table:
    crossing, positions = profile.crossing(), _has_positions(profile)
    table = Table(
        title=f"block size: {crossing.chosen}  ({_where(profile)})", title_style="bold", collapse_padding=True
    )
    names = ["block", "kept", f"p{profile.dims[0]}/pn", f"one {profile.of}", "refresh", "per step", "state"]
    if positions:
        names.insert(2, "kept *")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    kept, moved, performance = profile.kept(), profile.kept("position"), profile.performance()
    for i, dim in enumerate(profile.dims):
        call, refresh = profile.calls[dim], profile.refreshes[dim]
        spread = (call.high - call.low) / 2 / call.median
        modelled = "~" if refresh.timing.repeats == 0 else ""
        row = [f"{dim}", f"{kept[i]:.2f}", f"{performance[i]:.3f}", f"{duration(call.median)} ±{spread:.0%}",
               modelled + duration(refresh.timing.median), duration(refresh.timing.median / interval),
               f"{refresh.bytes / 2**20:.1f} MiB"]  # fmt: skip
        if positions:
            row.insert(2, f"{moved[i]:.2f}")
        table.add_row(*row, style="bold" if dim == crossing.chosen else None)
    caption = f"per step: a refresh every {interval} steps"
    table.caption = f"{caption}; kept *: position-major" if positions else caption
    return table


def _has_positions(profile: Profile) -> bool:
    return any("position" in factor.loss for factor in profile.factors)


def _where(profile: Profile) -> str:
    crossing = profile.crossing()
    return crossing.reason if crossing.dim is None else f"the curves cross at {crossing.dim:.0f}, {crossing.share:.2f}"


def _notes(profile: Profile) -> list[RenderableType]:
    notes: list[RenderableType] = [
        f"kept: share of factors with a spectral loss below {100 * profile.threshold:.3g}%"
        + (f"; launch floor {duration(profile.calls[1].median)}" if profile.dims[0] == 1 else "")
    ]
    floor = profile.largest_at_launch_floor() if profile.dims[0] == 1 else None
    if floor is not None:
        notes.append(
            f"[yellow]up to {floor} one {profile.of} costs what its call costs: p1/pn says nothing about sizes below, "
            f"look at the refresh[/yellow]"
        )
    if profile.settings.get("source") == "synthetic":
        notes.append(
            "[yellow]synthetic data: times and memory are right, losses are those of noise, not of your data[/yellow]"
        )
    if any(measure.timing.repeats == 0 for measure in profile.refreshes.values()):
        why = "memory limit" if profile.settings.get("details") else "only the choice was asked for"
        notes.append(f"~ modelled from the time of a block: the refresh was not measured there ({why})")
    return notes


def _splits_table(profile: Profile) -> Table:
    """Median error over factors and median cosine over layers, per candidate and split."""
    what = "a layer's direction by inverses" if profile.of == EIGENBASIS else "a layer's direction"
    table = Table(title=f"what each split keeps: median error of a factor | cosine of {what}")
    table.add_column("block", justify="right")
    splits = list(profile.factors[0].error)
    for split in splits:
        table.add_column(split, justify="right")
    for i, dim in enumerate(profile.dims):
        cells = []
        for split in splits:
            error = np.median([factor.error[split][i] for factor in profile.factors])
            cosine = np.median([layer.cosine[split][i] for layer in profile.layers])
            cells.append(f"{error:.3f} | {cosine:.3f}")
        table.add_row(str(dim), *cells)
    return table


def _plan_lines(profile: Profile, budget: float) -> list[RenderableType]:
    try:
        plan = choose_per_layer(profile, budget)
    except ValueError as error:  # no plan fits the budget; the rest of the report is still valid
        return [f"per-layer plan: {error}"]
    sizes = [size for pair in plan.sizes.values() for size in pair]
    text = f"per-layer plan: blocks of {min(sizes)} to {max(sizes)}, refresh about {duration(plan.seconds)}"
    if plan.above:
        text += f", {len(plan.above)} factors above the loss threshold"
    return [text]


def duration(seconds: float) -> str:
    """Format seconds with three significant digits in s, ms or us."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor or unit == "us":
            return f"{seconds / factor:.3g} {unit}"
    raise AssertionError


def draw(profile: Profile, path: Path) -> None:
    """Draw the two curves with their crossing, and the loss of every factor at every block size."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.2), layout="constrained")  # not pyplot, which would look for a display
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    crossing, dims = profile.crossing(), profile.dims
    at = [_place(dims, dim) for dim in dims]
    fine = np.unique(np.concatenate([np.geomspace(a, b, 40) for a, b in zip(dims, dims[1:], strict=False)]))
    curves = [(profile.kept(), "o", KEPT_COLOR, f"factors kept (loss < {100 * profile.threshold:.3g}%)"),
              (profile.performance(), "s", TIME_COLOR, f"speed of one {profile.of}, p{dims[0]} / pn")]  # fmt: skip
    if _has_positions(profile) and profile.kept("position") != profile.kept():
        curves.insert(1, (profile.kept("position"), "^", "#7fb2d9", "factors kept, position-major"))
    for values, marker, color, label in curves:  # linear between candidates, as in crossing.py
        left.plot([_place(dims, x) for x in fine], np.interp(fine, dims, values), color=color)
        left.plot(at, values, marker, color=color, label=label)
    chosen = _place(dims, crossing.chosen)
    left.axvline(chosen, color="0.6", linestyle="--", zorder=0)
    if crossing.dim is not None and crossing.share is not None:
        left.plot(_place(dims, crossing.dim), crossing.share, "x", color="black", markersize=10, markeredgewidth=2,
                  label=f"crossing ({crossing.dim:.0f}, {crossing.share:.2f})")  # fmt: skip
    left.set_title(f"chosen block size: {crossing.chosen}")
    left.set_xticks(at, [str(dim) for dim in dims])
    left.set(xlabel="block size (log scale)", ylabel="share", ylim=(-0.03, 1.06))
    left.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2, fontsize=9)
    _draw_losses(profile, figure, right, LogNorm(1e-3, 1.0))
    figure.suptitle(f"{profile.settings.get('network', 'network')} on {profile.environment['device']}, "
                    f"{profile.environment['machine']}, {_made(profile)}", fontsize=11)  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _place(dims: list[int], dim: float) -> float:
    """The position of a block size on the log2 axis, where the first two candidates are drawn one unit apart."""
    logs = np.log2(dims)
    return float(np.interp(np.log2(dim), logs, [0.0, *(1.0 + logs[1:] - logs[1])]))


def _draw_losses(profile: Profile, figure: Figure, axes: Axes, norm: LogNorm) -> None:
    """Draw the losses as an image, one row per factor and one column per candidate; darker is a larger loss."""
    factors = profile.factors
    losses = np.array([factor.loss["channel"] for factor in factors])
    image = axes.imshow(np.maximum(losses, 1e-3), aspect="auto", cmap="magma_r", norm=norm, interpolation="nearest")
    axes.set_xticks(range(len(profile.dims)), [str(dim) for dim in profile.dims])
    every = max(1, -(-len(factors) // 28))
    shown = range(0, len(factors), every)
    axes.set_yticks(list(shown), [f"{factors[i].name} ({factors[i].dim})" for i in shown], fontsize=7)
    names = "A and G of every layer" if every == 1 else f"A and G of every layer (every {every}th is named)"
    axes.set(xlabel="block size", title=f"spectral loss of {names}")
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label("loss L (palest: 0.1 % and less; line: kept)")
    bar.ax.axhline(profile.threshold, color="black", linewidth=1)
