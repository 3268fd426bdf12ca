"""Runs that are taken over from a file of results, in place of training them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.convergence import results
from scripts.convergence.results import ContenderResult, Run, TaskResult, Trial
from scripts.convergence.rules import Rules
from thor.runtime.errors import UserError


@dataclass(frozen=True)
class Taken:
    """The runs of one task in a file of results.

    Attributes:
        contenders: What the file has of each contender.
        target: The target that its runs to the target were chosen for.
    """

    contenders: Mapping[str, ContenderResult]
    target: float | None = None

    def trial(self, name: str, index: int, values: Mapping[str, Any]) -> Run | None:
        """A trial of these values; None if the file has no such run."""
        trials = self._of(name).trials
        return trials[index].run if index < len(trials) and trials[index].values == values else None

    def tested(
        self, name: str, part: str, seed: int, searched_as: str, trials: Sequence[Trial], target: float
    ) -> Run | None:
        """A run with a test seed, of ``part`` "to_target" or "equal_budget", chosen from the same trials; else None.

        A run to the target was chosen for the same ``target`` too.
        """
        if self._of(searched_as).trials != list(trials) or (part == "to_target" and self.target != target):
            return None
        runs: Sequence[Run] = getattr(self._of(name), part)
        return next((run for run in runs if run.seed == seed), None)

    def _of(self, name: str) -> ContenderResult:
        return self.contenders.get(name, ContenderResult())


#: No file: every run is trained.
NOTHING = Taken({})


def read(path: Path, rules: Rules, machine: Mapping[str, str]) -> dict[str, TaskResult]:
    """The tasks of a file; UserError if its rules or its machine are others."""
    found = results.read(path, "--take takes a results.json of run.py")
    if found.rules != rules:
        raise UserError(f"--take {path}: was made by other rules; give the --rules that it was made by")
    results.check_machine(f"--take {path}", found.machine, machine, "train all runs here")
    return found.tasks
