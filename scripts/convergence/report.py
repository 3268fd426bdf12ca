"""Writes the benchmark's results: results.json, tables in results.md, a picture for each task."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from scripts.common.atomic_write import write_atomically
from scripts.convergence import picture, results, tables
from scripts.convergence.results import ANEW, Results, TaskResult
from scripts.convergence.rules import Rules
from thor.runtime.errors import UserError
from thor.runtime.host_threads import available_cores
from thor.runtime.processor import processor_name

RESULTS, TABLES = "results.json", "results.md"


class Report:
    """The files of results in the folder of a benchmark.

    Attributes:
        path: The file of all results. Results of other tasks that it holds are kept.
    """

    def __init__(self, folder: Path, rules: Rules, taken: Mapping[str, TaskResult] = {}) -> None:
        """UserError if the folder has results of other rules; ``taken`` are results of another file, kept as well."""
        self.path = folder / RESULTS
        self._results = Results(rules=rules, machine=machine(), tasks=dict(taken))
        if self.path.is_file():
            before = results.read(self.path)
            if before.rules != rules:
                raise UserError(f"{self.path}: was made by other rules; give another --out, or remove it: {ANEW}")
            self._results = self._results.model_copy(update={"tasks": {**taken, **before.tasks}})

    def add(self, task: str, found: TaskResult) -> str:
        """Add or replace a task's results, write all files, and return the task's tables."""
        merged = {**self._results.tasks, task: found}
        ordered = {name: merged[name] for name in self._results.rules.tasks if name in merged}
        self._results = self._results.model_copy(update={"tasks": ordered})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        results.write(self._results, self.path)
        write_atomically(self.path.with_name(TABLES), tables.markdown(self._results))
        picture.draw(self._results, task, self.path.with_name(f"{task}.png"))
        return tables.of_task(self._results.rules, task, found)


def machine() -> dict[str, str]:
    """This machine: processor, cores, and what the runs are computed by."""
    return {
        "processor": processor_name(),
        "cores": str(available_cores()),
        "MindSpore": version("mindspore"),
        "Python": platform.python_version(),
    }
