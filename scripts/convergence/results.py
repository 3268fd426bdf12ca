"""What the benchmark measured, as data: one file, from which tables and pictures are drawn.

`read_run` reads the folder of one run; `read` and `write` the file of all results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scripts.common.atomic_write import write_atomically
from scripts.convergence.rules import Rules
from scripts.run_folder.metrics_recorder import SUMMARY, read_metrics
from scripts.settings.types import Settings
from thor.runtime.errors import UserError
from thor.runtime.json_files import parse

ANEW = "run.py --report-only makes it anew"
FAILED = "failed.txt"  # in the folder of a run that broke down


class Point(Settings):
    """An evaluation on the test set.

    Attributes:
        epoch, step: Where in the training it was.
        seconds: Training time up to it with compilation, without evaluations.
        compiling: What of it went into compilation.
        value: The metric.
    """

    epoch: float
    step: int
    seconds: float
    compiling: float
    value: float

    @property
    def without_compiling(self) -> float:
        """Training time without compilation."""
        return self.seconds - self.compiling


class Run(Settings):
    """A finished run.

    Attributes:
        seed: Its seed.
        points: Its evaluations; none if it broke down (loss or gradients not finite).
        refreshes: Inverses or eigenbases that THOR computed, summed over layers.
        peak: Peak memory of the process, in bytes.
        timed_alone: Its seconds are those of a run like it, beside which the machine did nothing else.
    """

    seed: int
    points: list[Point] = []
    refreshes: int = 0
    peak: int = 0
    timed_alone: bool = False

    @property
    def broke_down(self) -> bool:
        """True if its loss or its gradients were not finite."""
        return not self.points


class Trial(Settings):
    """A run of the search: the values that it was given, and what came out."""

    values: dict[str, Any]
    run: Run


class ContenderResult(Settings):
    """A contender on a task.

    Attributes:
        trials: Its search; empty if it takes the values of another contender.
        to_target: Runs with the values that reach the target first, one for each test seed.
        equal_budget: Runs of the task's full length with the values that end best, one for each test seed.
    """

    trials: list[Trial] = []
    to_target: list[Run] = []
    equal_budget: list[Run] = []


class TaskResult(Settings):
    """A task: its target, the contender whose trial set it (None if the rules give a number), and all contenders."""

    target: float
    set_by: str | None
    contenders: dict[str, ContenderResult]


class Results(Settings):
    """All results, with the rules and the machine that they were made by.

    Attributes:
        rules: The rules.
        machine: Processor, cores and versions.
        tasks: By name.
    """

    rules: Rules
    machine: dict[str, str]
    tasks: dict[str, TaskResult]


def read(path: Path, cure: str = f"remove it: {ANEW}") -> Results:
    """Read the file of all results; ``cure`` is what an error advises where it has something else."""
    try:
        return Results.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run.py writes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {cure}") from None
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(str(part) for part in detail["loc"])
        raise UserError(": ".join(filter(None, (str(path), where, detail["msg"]))) + f"; {cure}") from None


def check_machine(where: str, theirs: Mapping[str, str], ours: Mapping[str, str], cure: str) -> None:
    """UserError if results were measured on another machine than this one."""
    if theirs != ours:
        there, here = (", ".join(f"{key} {value}" for key, value in each.items()) for each in (theirs, ours))
        raise UserError(
            f"{where}: was measured on another machine ({there}; here: {here}), and seconds of two machines cannot be "
            f"compared; {cure}"
        )


def write(results: Results, path: Path) -> None:
    """Write the file of all results."""
    write_atomically(path, results.model_dump_json(indent=1) + "\n")


def read_run(folder: Path, seed: int, metric: str) -> Run | None:
    """Read a run; None if it is not finished."""
    if (folder / FAILED).is_file():
        return Run(seed=seed)
    path = folder / SUMMARY
    if not path.is_file():
        return None
    try:
        summary = parse(path.read_text(encoding="utf-8"))
        if not summary["finished"]:
            return None
        refreshes, peak = summary["refreshes"]["update"], summary["memory"]["peak"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: no summary of a run ({why}); remove the run's folder and go on") from error
    lines = [line for line in read_metrics(folder) if line["kind"] in ("epoch", "eval")]
    points = [_point(line, metric) for line in lines if metric in line and "compiling" in line]
    if not points:
        why = f"the run is finished, but its lines have no {metric} or not what was compiled"
        raise UserError(f"{folder}: {why}; remove the folder and go on")
    if not all(math.isfinite(point.value) for point in points):
        return Run(seed=seed)
    return Run(seed=seed, points=points, refreshes=refreshes, peak=peak)


def _point(line: Mapping[str, Any], metric: str) -> Point:
    """A line of a run's metrics file; the caller tells a value that is not finite."""
    return Point.model_construct(
        epoch=float(line["epoch"]),
        step=line["step"],
        seconds=float(line["seconds"]),
        compiling=float(line["compiling"]),
        value=float(line[metric]),
    )
