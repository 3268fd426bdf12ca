"""Several runs side by side: python scripts/compare.py RUN_FOLDER RUN_FOLDER ... [--out compare.png].

A table on the terminal and a picture: the metric of the test set over epochs and over seconds of training.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

from scripts.common.arguments import picture_to_write  # noqa: E402
from scripts.common.errors import run_program  # noqa: E402
from scripts.plot import draw_scores, short_names  # noqa: E402
from scripts.run_folder.evaluations import METRICS_OF_TEST, common_metric, evaluations, metric_of  # noqa: E402
from scripts.run_folder.metrics_recorder import METRICS, median_of_steps, read_metrics  # noqa: E402
from scripts.run_folder.restore import check_run_folder, settings_of  # noqa: E402
from thor.report.metrics_file import Line  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402

WIDTH = 120  # columns of the table where the output is not a terminal


@dataclass(frozen=True)
class Result:
    """The results of a run.

    Attributes:
        name: Name of the run's folder, shortened.
        optimizer: Name of the optimizer.
        key: Name of the metric in the run's metrics file.
        evaluations: Lines of the metrics file with results on the test set.
        milliseconds: Median milliseconds of a step; None if no step is recorded.
    """

    name: str
    optimizer: str
    key: str
    evaluations: list[Line]
    milliseconds: float | None

    @property
    def higher_is_better(self) -> bool:
        """True for accuracies."""
        return METRICS_OF_TEST[self.key].higher_is_better

    @property
    def best(self) -> Line:
        """The evaluation with the best value."""
        return max(self.evaluations, key=lambda line: self._goodness(line[self.key]))

    def _goodness(self, value: float) -> float:
        """A sort key that grows as the value gets better; a value that is not finite is the worst."""
        return (value if self.higher_is_better else -value) if math.isfinite(value) else -math.inf

    def reached(self, value: float) -> Line | None:
        """The first evaluation at least as good as ``value``; None if there is none."""
        sign = 1.0 if self.higher_is_better else -1.0
        return next((line for line in self.evaluations if sign * line[self.key] >= sign * value), None)


def read_result(folder: Path, name: str) -> Result:
    """Read the evaluations of a run, finished or not."""
    check_run_folder(folder)
    lines = read_metrics(folder)
    found = evaluations(lines)
    key = metric_of(found)
    if key is None:
        raise UserError(f"{folder}: has no evaluation yet (no metrics.jsonl with test results)")
    if not all(key in line for line in found):
        raise UserError(f"{folder / METRICS}: has {key} in some evaluations, and not in others")
    return Result(name, settings_of(folder).optimizer, key, found, median_of_steps(lines))


def compare(folders: Sequence[Path]) -> list[Result]:
    """Read the results of several runs; UserError if they have different metrics."""
    results = [read_result(folder, name) for folder, name in zip(folders, short_names(folders), strict=True)]
    common_metric({result.name: result.evaluations for result in results})
    return results


def table(results: Sequence[Result]) -> Table:
    """A table with one row per run; its goal is the worst of the runs' best finite values, which all of these reach."""
    metric = METRICS_OF_TEST[results[0].key]
    reached_by = [value for result in results if math.isfinite(value := result.best[result.key])]
    worst = (min if metric.higher_is_better else max)(reached_by, default=math.nan)
    grid = Table(title=metric.title)
    grid.add_column("run", no_wrap=True)
    columns = ["optimizer", "best", "at epoch", "last", "epochs", "seconds", "ms/step"]
    for column in (*columns, f"to {metric.shown(worst)}"):
        grid.add_column(column, justify="right")
    for result in results:
        last, reached = result.evaluations[-1], result.reached(worst)
        grid.add_row(
            Text(result.name),  # brackets in a folder's name are not markup
            result.optimizer,
            metric.shown(result.best[result.key]),
            f"{result.best['epoch']:g}",
            metric.shown(last[result.key]),
            f"{last['epoch']:g}",
            f"{last['seconds']:.0f}",
            "-" if result.milliseconds is None else f"{result.milliseconds:.1f}",
            f"{reached['epoch']:g} ep, {reached['seconds']:.0f} s" if reached else "-",
        )
    return grid


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--out", type=picture_to_write, default="compare.png", help="the picture (compare.png)")
    options = parser.parse_args(arguments)
    results = compare(options.folders)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    console.print(table(results))
    draw_scores({result.name: result.evaluations for result in results}, options.out)
    console.print(f"picture: {options.out}", markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    run_program(main)
