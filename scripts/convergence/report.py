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

    def __init__(
        self, folder: Path, rules: Rules, taken: Mapping[str, TaskResult] = {}, read_only: bool = False
    ) -> None:
        """Read the results of the folder, if there are any; ``taken`` are those of another file, kept as well.

        With ``read_only`` nothing is trained here, so that the results may be of another machine.

        Raises:
            UserError: if the folder has results of other rules or of another machine.
        """
        self.path = folder / RESULTS
        self._results = Results(rules=rules, machine=machine(), tasks=dict(taken))
        if self.path.is_file():
            before = results.read(self.path)
            if before.rules != rules:
                raise UserError(f"{self.path}: was made by other rules; give another --out, or remove it: {ANEW}")
            if not read_only:
                results.check_machine(str(self.path), before.machine, self._results.machine, "give another --out")
            kept = {"machine": before.machine, "tasks": {**taken, **before.tasks}}
            self._results = self._results.model_copy(update=kept)

    def add(self, task: str, found: TaskResult) -> str:
        """Add or replace a task's results, write all files, and return the task's tables.

        Contenders that ``found`` lacks keep their earlier runs to the same target.
        """
        found = with_others(found, self._results.tasks.get(task), self._results.rules)
        merged = {**self._results.tasks, task: found}
        ordered = {name: merged[name] for name in self._results.rules.tasks if name in merged}
        self._results = self._results.model_copy(update={"tasks": ordered})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        results.write(self._results, self.path)
        write_atomically(self.path.with_name(TABLES), tables.markdown(self._results))
        picture.draw(self._results, task, self.path.with_name(f"{task}.png"))
        return tables.of_task(self._results.rules, task, found)


def with_others(found: TaskResult, before: TaskResult | None, rules: Rules) -> TaskResult:
    """Results, with those that earlier ones have of contenders that were not asked for now.

    Earlier results with another target are of another search, and are dropped. So are those of a contender that takes
    over the values of another one, where that one was searched anew.
    """
    if before is None or before.target != found.target:
        return found

    def is_whole(name: str) -> bool:
        own, earlier = found.contenders.get(name), before.contenders.get(name)
        return own is not None and (earlier is None or bool(own.to_target) or own.trials != earlier.trials)

    def is_outdated(name: str) -> bool:
        origin = rules.searched_as(name)
        now, then = found.contenders.get(origin), before.contenders.get(origin)
        return origin != name and now is not None and then is not None and now.trials != then.trials

    earlier = [name for name in before.contenders if not is_outdated(name)]
    names = [name for name in rules.contenders if name in found.contenders or name in earlier]
    both = {name: (found if is_whole(name) else before).contenders[name] for name in names}
    return found.model_copy(update={"contenders": both})


def machine() -> dict[str, str]:
    """This machine: processor, cores, and what the runs are computed by."""
    return {
        "processor": processor_name(),
        "cores": str(available_cores()),
        "MindSpore": version("mindspore"),
        "Python": platform.python_version(),
    }
