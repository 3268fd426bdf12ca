"""The metrics of a run: metrics.jsonl with one line per event, the same as CSV files, and summary.json."""

from __future__ import annotations

import csv
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.common.atomic_write import write_atomically
from scripts.common.errors import reporting_write_errors
from scripts.run_folder.progress_record import Position
from thor.report.metrics_file import DECISIONS, SCORES, Line, read_lines
from thor.runtime.errors import UserError

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
LOST = "the newest lines are lost, those up to the last checkpoint are there and --resume goes on from it"

# The CSV files: the kinds of lines that go into each, and its columns, which are fixed from the first line on.
TABLES = {
    "metrics.csv": (
        ("step", "eval", "epoch"),
        ("kind", "step", "epoch", "seconds", "compiling", "loss", "ms_per_step", "train_loss")
        + ("test_loss", "test_accuracy", "test_top5", "test_error"),
    ),
    "refreshes.csv": (("refresh",), ("step", "layer", "trace", "change", "decision")),
}


class Recorder:
    """Appends lines to a run's files; the `kind` of a line is step, eval, epoch, refresh or ranks.

    The `step` of every line counts batches from 1. A resumed run needs it to drop the lines that it will write again.
    """

    def __init__(self, folder: Path, resumed: Position | None = None, board: Any = None) -> None:
        """Start new files, or append to the lines up to a resumed position; `board` is from `open_tensorboard`."""
        kept = [line for line in read_metrics(folder) if _is_final(resumed, line)] if resumed else []
        self._path = folder / METRICS
        with reporting_write_errors(self._path, "nothing is trained yet, and what was there is whole"):
            write_atomically(self._path, "".join(json.dumps(line) + "\n" for line in kept))
            self._file = self._path.open("a")
            self._tables = [_Table(folder / name, *about) for name, about in TABLES.items()]
            for line in kept:
                for table in self._tables:
                    table.write(line)
        self._board = board

    def step(self, **values: Any) -> None:
        """Record a training step: step, epoch, loss, ms_per_step, seconds."""
        self._write({"kind": "step", **values})

    def evaluation(self, **values: Any) -> None:
        """Record an evaluation within an epoch: step, epoch, test_loss, test_accuracy ..., seconds, compiling."""
        self._write({"kind": "eval", **values})

    def epoch(self, **values: Any) -> None:
        """Record an epoch: step, epoch, train_loss, test_loss, test_accuracy or test_error, seconds, compiling."""
        self._write({"kind": "epoch", **values})

    def refresh(self, step: int, record: Any) -> None:
        """Record a refresh decision of thor.THOR at the run's step; ``record.step`` counts updates instead."""
        values = {"step": step, "layer": record.layer, "trace": float(record.trace)}
        change = None if record.change is None else float(record.change)
        self._write({"kind": "refresh", **values, "change": change, "decision": record.decision.name})

    def ranks(self, step: int, inverse_seconds: list[float]) -> None:
        """Record the seconds that each rank of a job spent on its inverses at a refresh."""
        self._write({"kind": "ranks", "step": step, "inverse_seconds": inverse_seconds})

    def flush(self) -> None:
        """Flush all files; the disk has the metrics then, which a resumed run needs."""
        with reporting_write_errors(self._path, LOST):
            self._file.flush()
            os.fsync(self._file.fileno())
            for table in self._tables:
                table.file.flush()
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        """Flush and close all files, even if one of them cannot be written."""
        with reporting_write_errors(self._path, LOST), ExitStack() as closing:
            if self._board is not None:
                closing.callback(self._board.close)
            for file in (*(table.file for table in self._tables), self._file):
                closing.callback(file.close)

    def _write(self, line: Line) -> None:
        with reporting_write_errors(self._path, LOST):
            self._file.write(json.dumps(line) + "\n")
            for table in self._tables:
                table.write(line)
        if self._board is not None:
            _to_board(self._board, line)
        if line["kind"] == "epoch":
            self.flush()


class NullRecorder(Recorder):
    """A recorder that writes nothing, for the ranks of a job that do not lead."""

    def __init__(self) -> None:
        pass

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _write(self, line: Line) -> None:
        pass


class _Table:
    """One CSV file."""

    def __init__(self, path: Path, kinds: tuple[str, ...], columns: tuple[str, ...]) -> None:
        self.file = path.open("w", newline="")
        self._kinds = kinds
        self._writer = csv.DictWriter(self.file, columns, restval="", extrasaction="ignore")
        self._writer.writeheader()

    def write(self, line: Line) -> None:
        """Append a line if its kind belongs in this table."""
        if line["kind"] in self._kinds:
            self._writer.writerow(line)


def _is_final(position: Position, line: Line) -> bool:
    """True if a run resumed at a position will not write this line again."""
    if line["kind"] == "eval" and line["step"] == position.step:
        return position.evaluated == position.step
    return line["step"] <= position.step and (line["kind"] != "epoch" or line["epoch"] <= position.epoch)


def open_tensorboard(folder: Path, resumed: Position | None) -> Any:
    """A TensorBoard writer that hides old points after the resumed position, or all if there is none."""
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError:
        raise UserError(
            "tensorboard = true needs tensorboardX: pip install tensorboardX (or the extra 'tensorboard')"
        ) from None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=0 if resumed is None else resumed.step + 1)


def _to_board(board: Any, line: Line) -> None:
    """Write the numbers of a line as scalars over steps."""
    if line["kind"] == "refresh":
        board.add_scalar(f"trace/{line['layer']}", line["trace"], line["step"])
        return
    for key in ("loss", "ms_per_step", "train_loss", *SCORES):
        if key in line:
            board.add_scalar(key, line[key], line["step"])


def read_metrics(folder: Path) -> list[Line]:
    """Read and check all complete lines of a run."""
    path = folder / METRICS
    return read_lines(path) if path.is_file() else []


def median_of_steps(lines: Iterable[Line]) -> float | None:
    """Median milliseconds of a step; None if no step is recorded."""
    times = [line["ms_per_step"] for line in lines if line["kind"] == "step"]
    return statistics.median(times) if times else None


def write_summary(folder: Path, about: Line) -> Line:
    """Write summary.json: the given facts about the run, and its results."""
    lines = read_metrics(folder)
    epochs = [line for line in lines if line["kind"] == "epoch"]
    decisions = Counter(line["decision"] for line in lines if line["kind"] == "refresh")
    stopped = sorted(line["layer"] for line in lines if line.get("decision") == "STOP")
    summary = {
        **about,
        "epochs": [{key: value for key, value in line.items() if key != "kind"} for line in epochs],
        "median_ms_per_step": median_of_steps(lines),
        "refreshes": {name.lower(): decisions[name] for name in DECISIONS},
        "stopped_layers": stopped,
    }
    shared = [line["inverse_seconds"] for line in lines if line["kind"] == "ranks"]
    if shared:
        waits = [max(seconds) - min(seconds) for seconds in shared]  # the fastest rank's wait
        summary["skew"] = {"refreshes": len(waits), "median_s": statistics.median(waits), "max_s": max(waits)}
    with reporting_write_errors(folder / SUMMARY, "all else of the run is there, and --resume makes it anew"):
        write_atomically(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
    return summary
