"""What a run leaves to read: metrics.jsonl, one line an event, and summary.json, made from it."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
DECISIONS = ("UPDATE", "KEEP", "STOP")

Line = dict[str, Any]


class Recorder:
    """Appends lines to a run's metrics.jsonl; each has `kind`: step, epoch or refresh."""

    def __init__(self, folder: Path, resume_at: int | None = None) -> None:
        """Start a new file, or go on behind the lines of step `resume_at`."""
        path = folder / METRICS
        kept = [line for line in read_metrics(folder) if line["step"] <= resume_at] if resume_at is not None else []
        temporary = path.with_suffix(".writing")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(temporary, path)
        self._file = path.open("a")

    def step(self, **values: Any) -> None:
        """A training step: step, epoch, loss, ms_per_step, seconds."""
        self._write({"kind": "step", **values})

    def epoch(self, **values: Any) -> None:
        """An epoch: step, epoch, train_loss, test_loss, test_accuracy or test_error, seconds."""
        self._write({"kind": "epoch", **values})

    def refresh(self, record: Any) -> None:
        """A refresh decision of thor.THOR's history."""
        values = {"step": int(record.step), "layer": record.layer, "trace": float(record.trace)}
        change = None if record.change is None else float(record.change)
        self._write({"kind": "refresh", **values, "change": change, "decision": record.decision.name})

    def flush(self) -> None:
        """Bring all lines to the file."""
        self._file.flush()

    def close(self) -> None:
        """Flush, and close the file."""
        self._file.close()

    def _write(self, line: Line) -> None:
        self._file.write(json.dumps(line) + "\n")
        if line["kind"] == "epoch":
            self.flush()


def read_metrics(folder: Path) -> list[Line]:
    """All complete lines of a run."""
    path = folder / METRICS
    if not path.is_file():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def write_summary(folder: Path, about: Line) -> Line:
    """Write summary.json: what the run was, and its results."""
    lines = read_metrics(folder)
    epochs = [line for line in lines if line["kind"] == "epoch"]
    times = [line["ms_per_step"] for line in lines if line["kind"] == "step"]
    decisions = Counter(line["decision"] for line in lines if line["kind"] == "refresh")
    stopped = sorted(line["layer"] for line in lines if line.get("decision") == "STOP")
    last = epochs[-1] if epochs else {}
    summary = {
        **about,
        "epochs": [{key: value for key, value in line.items() if key != "kind"} for line in epochs],
        "steps": last.get("step", 0),
        "seconds": last.get("seconds", 0.0),
        "median_ms_per_step": statistics.median(times) if times else None,
        "refreshes": {name.lower(): decisions[name] for name in DECISIONS},
        "stopped_layers": stopped,
    }
    temporary = folder / "summary.writing"
    temporary.write_text(json.dumps(summary, indent=1) + "\n")
    os.replace(temporary, folder / SUMMARY)
    return summary
