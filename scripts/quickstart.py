"""THOR and Momentum side by side: the same network, initial weights and batch order; a table and a picture.

python scripts/quickstart.py [--key value ...]; the settings apply to both runs, and --out is the folder of both.
Both start anew each time, and remove the results of an earlier quickstart in that folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only, before it is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from scripts.common.errors import INTERRUPTED, run_program  # noqa: E402
from scripts.settings.yaml_config import load_config  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402

CONFIGS = Path(__file__).parent / "config"
OPTIMIZERS = ("thor", "momentum")
PICTURE = "curves.png"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train with both optimizers, then show their results."""
    parser = argparse.ArgumentParser(
        prog="quickstart.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), help="folder (runs/quickstart)")
    options, overrides = parser.parse_known_args(arguments)
    out: Path = options.out
    if any(argument.split("=")[0] == "--optimizer" for argument in overrides):
        raise UserError(
            f"--optimizer: the quickstart trains {' and '.join(OPTIMIZERS)}, each with its own settings; for another, "
            f"python scripts/train.py --config scripts/config/quickstart_momentum.yaml --optimizer ..."
        )
    console = Console()
    for optimizer in OPTIMIZERS:
        folder = out / optimizer
        settings = load_config(CONFIGS / f"quickstart_{optimizer}.yaml", [*overrides, "--out", str(folder)], OPTIMIZERS)

        from scripts.training.loop import train

        if not train(settings, console=console, overwrite=True).finished:
            print(
                f"ended early; `python scripts/train.py --config {folder / 'config.yaml'} --resume` completes this run"
            )
            return INTERRUPTED
    folders = [out / optimizer for optimizer in OPTIMIZERS]
    console.print(table([_summary(folder) for folder in folders]))

    from scripts.plot import plot

    plot(folders, out / PICTURE)
    console.print(f"loss, accuracy and refresh decisions: {out / PICTURE}", highlight=False)
    return 0


def table(summaries: Sequence[dict[str, Any]]) -> Table:
    """A table of the results, with one column per run."""
    from scripts.run_folder.evaluations import METRICS_OF_TEST, metric_of

    lines = [line for summary in summaries for line in summary["epochs"]]
    key = metric_of(lines) or "test_accuracy"
    metric = METRICS_OF_TEST[key]
    grid = Table(title=f"{summaries[0]['data']}, {metric.title.partition(',')[0].lower()}")
    grid.add_column("after epoch")
    for summary in summaries:
        grid.add_column(summary["optimizer"], justify="right")
    epochs = max(len(summary["epochs"]) for summary in summaries)
    for epoch in range(epochs):
        values = [_value(summary["epochs"], epoch, key) for summary in summaries]
        scores = ["-" if value is None else metric.shown(value) for value in values]
        grid.add_row(str(epoch + 1), *scores, end_section=epoch == epochs - 1)
    grid.add_row("training seconds", *[f"{summary['seconds']:.0f}" for summary in summaries])
    speeds = [summary["median_ms_per_step"] for summary in summaries]
    grid.add_row("median ms a step", *["-" if speed is None else f"{speed:.0f}" for speed in speeds])
    for label, kind in (("refreshes done", "update"), ("refreshes kept", "keep"), ("layers stopped", "stop")):
        counts = [summary["refreshes"] for summary in summaries]
        grid.add_row(label, *[str(count[kind]) if sum(count.values()) else "-" for count in counts])
    return grid


def _value(epochs: Sequence[dict[str, Any]], number: int, key: str) -> float | None:
    """The test value ``key`` after an epoch; None if it was not measured."""
    return epochs[number].get(key) if number < len(epochs) else None


def _summary(folder: Path) -> dict[str, Any]:
    """Read summary.json of a run."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


if __name__ == "__main__":
    run_program(main)
