"""How much THOR's defaults depend on what they are set to: one setting moves at a time, on a task of the benchmark.

    python scripts/convergence/sensitivity.py [--task autoencoder] [--epochs 1] [--seed 11] [--out runs/sensitivity]
    python scripts/convergence/sensitivity.py --grid      # factor_interval x interval x block size, a table

The learning rate is Adam's first one of the task, times 1/4 to 4; the block size goes from 32 to 512 rows, the interval
between candidate refreshes from 1 to 100 steps. Each run is a folder of scripts/train.py, so the same command goes on
after an interruption. It writes a table, the numbers and, without ``--grid``, a picture.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.common.arguments import count, seed  # noqa: E402
from scripts.common.atomic_write import write_atomically  # noqa: E402
from scripts.common.errors import INTERRUPTED, run_program  # noqa: E402
from scripts.convergence import rules, search  # noqa: E402
from scripts.convergence.bench import Bench, EndedEarlyError, Job  # noqa: E402
from scripts.convergence.pace import Pace  # noqa: E402
from scripts.convergence.picture import TITLES, scaled  # noqa: E402
from scripts.convergence.results import Run  # noqa: E402
from scripts.convergence.rules import LENGTH, Rules, Task  # noqa: E402
from scripts.run_folder.stop_request import handling_signals  # noqa: E402

CONTENDER = "thor"
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
BLOCKS = (32, 64, 128, 256, 512)
INTERVALS = (1, 2, 5, 10, 20, 50, 100)
CLOSE = 0.03  # of the best value: what counts as equally good
#: The grid; an interval of None is the default, which grows from 1 to 100.
GRID = {"thor.factor_interval": (1, 5, 20), "thor.interval": (None, 20), "thor.block_size": (32, 128, 512)}


def moved(fixed: Rules, task: str) -> dict[str, dict[float, dict[str, Any]]]:
    """For each setting that moves: its values, and the settings of their runs."""
    base = _start(fixed, task) | {"thor.block_size": 128}
    rate = base["thor.learning_rate"]
    return {
        "learning rate / Adam's": {
            r: base | {"thor.learning_rate": float(f"{rate * r:.3g}")} for r in RATES
        },
        "block size": {b: base | {"thor.block_size": b} for b in BLOCKS},
        "interval": {i: base | {"thor.interval": i} for i in INTERVALS},
    }  # fmt: skip


def grid(fixed: Rules, task: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """For each point of the grid the settings of its run."""
    return {
        point: _start(fixed, task) | {key: value for key, value in zip(GRID, point, strict=True) if value is not None}
        for point in itertools.product(*GRID.values())
    }


def _start(fixed: Rules, task: str) -> dict[str, Any]:
    """The benchmark's first guess for THOR, for a schedule of any length and without a warm-up."""
    first, *_ = search.trials(fixed, task, CONTENDER)
    return {key: value for key, value in first.items() if key != LENGTH} | {"thor.schedule": "cosine"}


def lasting(fixed: Rules, task: str, epochs: int) -> Rules:
    """The rules with another number of epochs for a task."""
    own = fixed.tasks[task].model_copy(update={"epochs": epochs})
    return fixed.model_copy(update={"tasks": {**fixed.tasks, task: own}})


def trained(
    bench: Bench, fixed: Rules, task: str, folder: Path, seed_of_run: int, runs: Mapping[Any, dict[str, Any]]
) -> dict[Any, Run]:  # fmt: skip
    """Each run; equal ones are trained once."""
    names = {key: f"seed-{seed_of_run}-{_name(values)}" for key, values in runs.items()}
    by_name = {name: runs[key] for key, name in names.items()}
    bench.pace = Pace(len(by_name), bench.jobs)
    jobs = [
        Job(folder / name, search.settings(fixed, task, CONTENDER, values, seed_of_run), fixed.tasks[task].metric)
        for name, values in by_name.items()
    ]
    found = dict(zip(by_name, bench.run_all(jobs), strict=True))
    return {key: run for key, name in names.items() if (run := found[name]) is not None}


def _name(values: Mapping[str, Any]) -> str:
    """A name of a run's folder that tells its settings."""
    return "-".join(f"{key.rpartition('.')[2]}-{value}" for key, value in sorted(values.items()))


def width(task: Task, values: Mapping[float, float | None]) -> tuple[float, float] | None:
    """The largest range of neighbouring settings whose values are all within CLOSE of the best one.

    None if every run broke down.
    """
    known = [value for value in values.values() if value is not None]
    if not known:
        return None
    best = max(known) if task.higher_is_better else min(known)
    good = [at for at, value in values.items() if value is not None and abs(value - best) <= CLOSE * best]
    at_best = next(at for at, value in values.items() if value == best)
    order = list(values)
    low = high = order.index(at_best)
    while low > 0 and order[low - 1] in good:
        low -= 1
    while high + 1 < len(order) and order[high + 1] in good:
        high += 1
    return order[low], order[high]


def final(run: Run) -> float | None:
    """The last value of a run; None if it broke down."""
    return None if run.broke_down else run.points[-1].value


def draw(task: Task, found: Mapping[str, Mapping[float, float | None]], path: Path) -> None:
    """Draw the final value over each setting; a shade marks what is within CLOSE of the best."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        known = {at: scaled(task, value) for at, value in values.items() if value is not None}
        shaded = width(task, values)
        if shaded is not None:
            axes.axvspan(*shaded, color="tab:green", alpha=0.12)
        axes.plot(list(known), list(known.values()), marker="o", color="tab:blue")
        for at, value in values.items():
            if value is None:
                axes.annotate(
                    "broke down", (at, 0.95), xycoords=("data", "axes fraction"), ha="center", color="tab:red"
                )
        axes.set_xscale("log")
        axes.set_xticks(list(values), [f"{at:g}" for at in values])
        axes.minorticks_off()
        axes.set(xlabel=name, ylabel=TITLES[task.metric])
        axes.grid(alpha=0.3)
    figure.suptitle(f"{task.title}\nshaded: within {CLOSE:.0%} of the best", fontsize=10)
    figure.savefig(path, dpi=130)


def table(task: Task, found: Mapping[str, Mapping[float, float | None]]) -> str:
    """A Markdown table for each setting."""
    lines = []
    for name, values in found.items():
        shaded = width(task, values)
        lines += [
            f"| {name} | {' | '.join(f'{at:g}' for at in values)} |",
            "|---" * (len(values) + 1) + "|",
            f"| {task.metric} | {' | '.join(_shown(task, value) for value in values.values())} |",
            "",
            "Every run broke down: loss or gradients were not finite."
            if shaded is None
            else f"Within {CLOSE:.0%} of the best from {shaded[0]:g} to {shaded[1]:g}.",
            "",
        ]
    return "\n".join(lines)


def grid_table(task: Task, found: Mapping[tuple[Any, ...], float | None]) -> str:
    """A Markdown table: a row for each pair of intervals, a column for each block size."""
    factors, intervals, blocks = GRID.values()
    lines = [
        f"| factor_interval | interval | {' | '.join(f'blocks of {b}' for b in blocks)} |",
        "|---" * (2 + len(blocks)) + "|",
    ]
    for every, interval in itertools.product(factors, intervals):
        cells = [_shown(task, found[every, interval, b]) for b in blocks]
        lines.append(f"| {every} | {interval or 'grows'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(task: Task, value: float | None) -> str:
    if value is None:
        return "broke down"
    return f"{value:.2%}" if task.higher_is_better else f"{value:.4g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, and write table, numbers and picture."""
    fixed = rules.load(rules.DEFAULT)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(fixed.tasks), default="autoencoder")
    parser.add_argument("--epochs", type=count, default=1, help="schedule of every run (1)")
    parser.add_argument("--seed", type=seed, default=11)
    parser.add_argument("--jobs", type=count, default=1, help="runs at the same time, each on its own cores (1)")
    parser.add_argument("--grid", action="store_true", help="factor_interval x interval x block size")
    parser.add_argument("--out", type=Path, default=Path("runs/sensitivity"))
    options = parser.parse_args(arguments)
    name, bench = options.task, Bench(options.jobs, Console())
    fixed = lasting(fixed, name, options.epochs)
    task, folder = fixed.tasks[name], options.out / f"{name}-{options.epochs}"
    axes = {} if options.grid else moved(fixed, name)
    runs: dict[Any, dict[str, Any]] = grid(fixed, name) if options.grid else {}
    runs |= {(axis, at): values for axis, points in axes.items() for at, values in points.items()}
    try:
        with handling_signals(bench.end):
            done = trained(bench, fixed, name, folder / CONTENDER, options.seed, runs)
            values = {key: final(run) for key, run in done.items()}
    except EndedEarlyError:
        bench.tell("ended early; the same command goes on")
        return INTERRUPTED
    stem = folder / ("grid" if options.grid else "sensitivity")
    found = {axis: {at: values[axis, at] for at in points} for axis, points in axes.items()}
    text = grid_table(task, values) if options.grid else table(task, found)
    folder.mkdir(parents=True, exist_ok=True)
    bench.tell(text)
    numbers = [{"at": key, "settings": runs[key], task.metric: value} for key, value in values.items()]
    about = {"task": name, "epochs": options.epochs, "seed": options.seed, "runs": numbers}
    write_atomically(stem.with_suffix(".json"), json.dumps(about, indent=1) + "\n")
    write_atomically(stem.with_suffix(".md"), text + "\n")
    if found:
        draw(task, found, stem.with_suffix(".png"))
        bench.tell(f"picture: {stem.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    run_program(main)
