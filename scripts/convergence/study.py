"""The benchmark of one task: search, target, choice among the trials, and the runs with the test seeds, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from scripts.convergence import measures, search
from scripts.convergence.bench import Bench, Job
from scripts.convergence.pace import Pace
from scripts.convergence.results import ContenderResult, Run, TaskResult, Trial
from scripts.convergence.rules import LENGTH, Rules
from scripts.convergence.search import Values
from scripts.convergence.taken import NOTHING, Taken

TO_TARGET, EQUAL_BUDGET, TIMING = "to-target", "equal-budget", "timing"  # in the names of folders


@dataclass(frozen=True)
class Chosen:
    """A contender's values for each of the two comparisons; equal ones are trained once."""

    to_target: Values
    equal_budget: Values


@dataclass(frozen=True)
class Study:
    """A task's runs.

    Attributes:
        rules: The rules.
        task: Name of the task.
        names: Names of the contenders that take part. Those that set the target are always tuned.
        folder: Folder of the task's runs.
        bench: Does the runs.
        timed: Train once more for seconds alone, one run at a time.
        taken: Runs that are taken over in place of training them.
    """

    rules: Rules
    task: str
    names: Sequence[str]
    folder: Path
    bench: Bench
    timed: bool = False
    taken: Taken = NOTHING

    def do(self) -> TaskResult:
        """Do all runs that are not done, and return what came out."""
        drawn = {name: search.trials(self.rules, self.task, name) for name in self.rules.tuned(self.task, self.names)}
        most = sum(map(len, drawn.values())) + 2 * len(self.names) * len(self.rules.test_seeds)
        self.bench.pace = Pace(most, self.bench.jobs)
        trials = self._search(drawn)
        target, setter = measures.target_of(self.rules, self.task, trials)
        task = self.rules.tasks[self.task]
        chosen: dict[str, Chosen] = {}
        for name in self.names:
            own = trials.get(self.rules.searched_as(name), [])
            if len(own) == self.rules.trials:
                fast, good = measures.fastest(task, own, target), measures.ends_best(task, own)
                chosen[name] = Chosen(
                    own[fast].values, own[good].values | ({LENGTH: 1.0} if LENGTH in own[good].values else {})
                )
        found = self._test(chosen, trials, target)
        self._take_seconds(chosen, found)
        contenders = {
            name: ContenderResult(trials=trials.get(name, []), **found.get(name, {}))
            for name in self.rules.contenders
            if name in trials or name in found
        }
        return TaskResult(target=target, set_by=setter, contenders=contenders)

    def _search(self, drawn: Mapping[str, Sequence[Values]]) -> dict[str, list[Trial]]:
        """Do the trials of each contender; of an unfinished search those before the first one that is missing."""
        jobs = [
            self._job(name, values, self.rules.tuning_seed, f"trial-{index}", self.taken.trial(name, index, values))
            for name, trials in drawn.items()
            for index, values in enumerate(trials)
        ]
        runs = iter(self.bench.run_all(jobs))
        found: dict[str, list[Trial]] = {}
        for name, trials in drawn.items():
            done = [(values, next(runs)) for values in trials]
            whole = takewhile(lambda each: each[1] is not None, done)
            found[name] = [Trial(values=values, run=run) for values, run in whole if run is not None]
        return found

    def _test(
        self, chosen: Mapping[str, Chosen], trials: Mapping[str, Sequence[Trial]], target: float
    ) -> dict[str, dict[str, list[Run]]]:
        """Train all contenders with one test seed after the other, so that a slow phase of the machine meets all."""
        places: list[tuple[str, str]] = []
        jobs: list[Job] = []

        def of_file(name: str, part: str, seed: int) -> Run | None:
            origin = self.rules.searched_as(name)
            return self.taken.tested(name, part, seed, origin, trials.get(origin, []), target)

        def add(name: str, part: str, values: Values, seed: int, folder: str) -> None:
            jobs.append(self._job(name, values, seed, f"{folder}-{seed}", of_file(name, part, seed)))
            places.append((name, part))

        for seed in self.rules.test_seeds:
            for name, each in chosen.items():
                add(name, "to_target", each.to_target, seed, TO_TARGET)
                if each.equal_budget != each.to_target:
                    add(name, "equal_budget", each.equal_budget, seed, EQUAL_BUDGET)
        self.bench.pace.total -= 2 * len(chosen) * len(self.rules.test_seeds) - len(jobs)
        found: dict[str, dict[str, list[Run]]] = {}
        for (name, part), run in zip(places, self.bench.run_all(jobs), strict=True):
            if run is not None:
                found.setdefault(name, {}).setdefault(part, []).append(run)
        for name, parts in found.items():
            if chosen[name].equal_budget == chosen[name].to_target:
                same = parts.get("to_target", [])
                parts["equal_budget"] = [of_file(name, "equal_budget", run.seed) or run for run in same]
        return found

    def _take_seconds(self, chosen: Mapping[str, Chosen], found: Mapping[str, dict[str, list[Run]]]) -> None:
        """Give the runs to the target the seconds of one more run with the same values, where there is such a run."""
        jobs = {}
        for name, parts in found.items():
            whole = next((run for run in parts.get("to_target", ()) if not run.broke_down), None)
            if whole is not None and not whole.timed_alone:
                jobs[name] = self._job(name, chosen[name].to_target, whole.seed, TIMING)._replace(in_one_go=True)
        if self.timed:
            self.bench.pace.total += len(jobs)
            for job in jobs.values():
                self.bench.run_all([job])
        for name, job in jobs.items():
            timing = self.bench.read(job)
            if timing is not None and not timing.broke_down:
                found[name]["to_target"] = [measures.timed_by(run, timing) for run in found[name]["to_target"]]

    def _job(self, name: str, values: Values, seed: int, run: str, known: Run | None = None) -> Job:
        settings = search.settings(self.rules, self.task, name, values, seed)
        return Job(self.folder / name / run, settings, self.rules.tasks[self.task].metric, known)
