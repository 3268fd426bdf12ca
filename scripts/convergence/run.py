"""THOR against tuned first-order baselines: epochs and seconds to the best value that they reach.

    python scripts/convergence/run.py [--task autoencoder ...] [--trials 5] [--seeds 1 2 3] [--out runs/convergence]
    python scripts/convergence/run.py --quick             # a check in some minutes, on one small task

For each task, every optimizer is tuned for its best value by a quasi-random search of ``--trials`` runs (seed 0), then
trained with each seed: the same initial weights, batch order and convolution kernels. The optimizers take turns, seed
by seed, so that a slow phase of the machine affects all of them. The best of Momentum, Adam and Adafactor sets the
target, the mean over seeds of its best value.

Each run is a folder of scripts/train.py, so a benchmark that Ctrl-C or SIGTERM ended goes on with the same command,
even in the middle of a run. ``--jobs 2`` trains two runs at once, each on its own cores. Use it for tuning, where
only values count; then end it, and go on with one run at a time. ``--report-only`` makes table and picture of the
finished runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console  # noqa: E402

from scripts.common.atomic_write import write_atomically  # noqa: E402
from scripts.common.cpu_cores import core_binder, disjoint_cores, thread_limit  # noqa: E402
from scripts.common.errors import INTERRUPTED, STOPPED, run_program  # noqa: E402
from scripts.convergence import picture, results, search  # noqa: E402
from scripts.convergence.pace import Pace  # noqa: E402
from scripts.convergence.results import NoTargetError, Outcome  # noqa: E402
from scripts.convergence.tasks import TASKS, Contender, Task  # noqa: E402
from scripts.run_folder.restore import CONFIG  # noqa: E402
from scripts.run_folder.stop_request import handling_signals  # noqa: E402
from scripts.settings.train_settings import TrainSettings  # noqa: E402
from scripts.settings.yaml_config import differences, load_config, save_config, validate  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
TUNING_SEED = 0
TRIALS = "trials.jsonl"
FAILED = "failed.txt"  # in the folder of a run that broke down


Run = tuple[Contender, dict[str, Any], int, str]  # contender, searched values, seed, name of the run's folder


class EndedEarlyError(Exception):
    """A run was asked to end."""


@dataclass
class Bench:
    """The runs of one task, in its folder."""

    task: Task
    folder: Path
    epochs: int
    trials: int
    jobs: int
    console: Console
    ended: threading.Event = field(default_factory=threading.Event)  # set: no further run begins
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    error: UserError | None = None  # the first error of a run
    share: dict[str, str] = field(default_factory=dict)  # environment that gives a run its share of the cores

    def end(self, *_: object) -> None:
        """Start no further run, and ask the current ones to write a checkpoint and end."""
        self.ended.set()
        for process in tuple(self.running):
            process.terminate()

    def run_all(self, runs: Sequence[Run]) -> list[Outcome | None]:
        """Do runs, ``jobs`` of them at a time, each in its own process on its own cores."""
        self.share = thread_limit(self.jobs) if self.jobs > 1 else {}
        with ThreadPoolExecutor(self.jobs, initializer=core_binder(disjoint_cores(self.jobs))) as pool:
            try:
                return list(pool.map(lambda each: self.run(*each), runs))
            except (EndedEarlyError, UserError) as raised:  # of the first failed run in order, not in time
                raise self.error or raised from None

    def run(self, contender: Contender, values: dict[str, Any], seed: int, name: str) -> Outcome | None:
        """Train, unless the run is finished. None if training broke down (the rate is too high): a result too."""
        folder = self.folder / contender.name / name
        configured = search.settings(self.task, contender, values, seed, self.epochs)
        settings = validate({**configured, "out": str(folder), "keep": 1})
        _check_same(folder, settings)
        found = results.read_outcome(folder, contender.name, seed, self.task.metric)
        if found is not None or (folder / FAILED).is_file():
            self.pace.found()
            return found
        if self.ended.is_set():
            raise EndedEarlyError
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.with_suffix(".yaml")
        save_config(settings, path)
        start = time.monotonic()
        with folder.with_suffix(".log").open("a") as log:
            command = [sys.executable, str(TRAIN), "--config", str(path), "--resume", "auto"]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | self.share)
            self.running.append(process)
            if self.ended.is_set():  # it may have been set since the check above
                process.terminate()
            status = process.wait()
            self.running.remove(process)
        if status in (INTERRUPTED, STOPPED):
            self.ended.set()
        if status and self.ended.is_set():
            raise EndedEarlyError
        found = results.read_outcome(folder, contender.name, seed, self.task.metric)
        if found is None:
            words = folder.with_suffix(".log").read_text(errors="replace").strip().splitlines()[-1:]
            if not words or "not finite" not in words[0]:
                told = UserError(f"{folder}: training ended with status {status}: {' '.join(words)}")
                self.error = self.error or told
                self.end()  # else the next run and a parallel one would finish before this error is shown
                raise told
            (folder / FAILED).write_text(words[0] + "\n")
        shown = "broke down" if found is None else f"{self.task.metric} {results.best(self.task, found):.5g}"
        text = f"{self.task.name} {contender.name} {name}: {shown}, {self.pace.trained(time.monotonic() - start)}"
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        return found

    def tune(self, contenders: Sequence[Contender]) -> dict[str, dict[str, Any]]:
        """Search for each contender, log its trials, and return the settings of the best trial."""
        drawn = {each.name: search.trials(self.task, each, self.trials) for each in contenders}
        found = iter(self.run_all([
            (each, values, TUNING_SEED, f"trial-{index}")
            for each in contenders for index, values in enumerate(drawn[each.name])
        ]))  # fmt: skip
        tuned = {}
        for each in contenders:
            outcomes = [next(found) for _ in drawn[each.name]]
            values = [None if outcome is None else results.best(self.task, outcome) for outcome in outcomes]
            log = [
                {"trial": index, **trial, self.task.metric: value}
                for index, (trial, value) in enumerate(zip(drawn[each.name], values, strict=True))
            ]
            path = self.folder / each.name / TRIALS
            write_atomically(path, "".join(json.dumps(line) + "\n" for line in log))
            tuned[each.name] = drawn[each.name][results.first_of_best(self.task, values)]
        return tuned

    def all_runs(self, seeds: Sequence[int], names: Sequence[str]) -> tuple[list[Outcome], Counter[str]]:
        """Tune, and train all contenders with one seed after the other.

        Returns:
            The outcomes, and the number of runs of each contender that broke down.
        """
        taking_part = [each for each in self.task.contenders if each.name in names]
        if not any(each.sets_target for each in taking_part):  # checked before hours of training
            raise NoTargetError(
                f"{self.task.name}: one of {self.task.setters} has to take part, for it sets the target"
            )
        self.pace = Pace(self.count(seeds, names), self.jobs)
        sources = dict.fromkeys(each.tuned_as or each.name for each in taking_part)
        tuned = self.tune([self.task.contender(name) for name in sources])
        runs = [
            (each, tuned[each.tuned_as or each.name], seed, f"seed-{seed}") for seed in seeds for each in taking_part
        ]
        found = self.run_all(runs)
        broken = Counter(run[0].name for run, outcome in zip(runs, found, strict=True) if outcome is None)
        return [each for each in found if each is not None], broken

    def count(self, seeds: Sequence[int], names: Sequence[str]) -> int:
        """Number of runs, including those for tuning."""
        taking_part = [each for each in self.task.contenders if each.name in names]
        sources = {each.tuned_as or each.name for each in taking_part}
        tuning = sum(len(search.trials(self.task, self.task.contender(name), self.trials)) for name in sources)
        return tuning + len(taking_part) * len(seeds)

    def report(self, outcomes: Sequence[Outcome], broken: Counter[str], seeds: Sequence[int]) -> None:
        """Print the table; write table, numbers and picture."""
        setter, target = results.target_of(self.task, outcomes, broken)
        rows = results.rows(self.task, outcomes, broken, setter, target)
        text = picture.markdown(self.task, rows, broken, setter, target)
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        write_atomically(self.folder / "results.md", text + "\n")
        about = {
            "task": self.task.name, "epochs": self.epochs, "trials": self.trials_done(), "seeds": list(seeds),
            "jobs": self.jobs or None, "target": target, "set_by": setter, "broken": broken,
            "rows": [asdict(row) for row in rows],
        }  # fmt: skip
        write_atomically(self.folder / "results.json", json.dumps(about, indent=1) + "\n")
        picture.draw(self.task, outcomes, target, self.folder / "results.png")
        self.console.print(f"picture: {self.folder / 'results.png'}", markup=False, highlight=False, soft_wrap=True)

    def trials_done(self) -> dict[str, int]:
        """Number of runs in which each optimizer was tuned; it may differ from the current --trials."""
        logs = {each.name: self.folder / each.name / TRIALS for each in self.task.contenders}
        return {name: len(path.read_text().splitlines()) for name, path in logs.items() if path.is_file()}

    def finished(self, seeds: Sequence[int], names: Sequence[str]) -> tuple[list[Outcome], Counter[str]]:
        """Read the finished runs with seeds in `seeds`, and set ``epochs`` to those of the runs.

        Returns:
            The outcomes, and the number of runs of each contender that broke down.
        """
        self.jobs = 0  # unknown
        found, broken, epochs = [], Counter[str](), dict[Path, int]()
        for name in names:
            for seed in seeds:
                folder = self.folder / name / f"seed-{seed}"
                outcome = results.read_outcome(folder, name, seed, self.task.metric)
                broken[name] += outcome is None and (folder / FAILED).is_file()
                if outcome is not None:
                    found.append(outcome)
                    if self.task.contender(name).sets_target:  # others may take a share of the epochs
                        epochs[folder] = load_config(folder / CONFIG).epochs
        if len(set(epochs.values())) > 1:
            told = ", ".join(f"{folder}: {count} epochs" for folder, count in epochs.items())
            raise UserError(f"these runs are of several benchmarks: {told}")
        self.epochs = next(iter(epochs.values()), self.epochs)
        return found, +broken


def _check_same(folder: Path, settings: TrainSettings) -> None:
    """Raise an error if the folder has a run with other settings, which cannot be in the same table.

    The evaluation interval is compared too, because best value and time to the target depend on it.
    """
    path = folder / CONFIG
    if not path.is_file():  # the run has not begun
        return
    changed = differences(load_config(path), settings, also=("eval_every", "eval_every_steps"))
    if changed:
        raise UserError(
            f"{folder}: this run has other settings than it would have now: {'; '.join(changed)}; "
            f"remove the folder, or give another --out"
        )


def quick(task: Task) -> Task:
    """A small version of the autoencoder task: a narrow network on a part of the data."""
    data = {"name": "fashion_mnist", "train_size": 6000, "test_size": 1000}
    settings = {**task.settings, "network_options": {"widths": [784, 100, 16]}, "data": data, "batch_size": 200}
    return replace(task, name="quick", title="Quick mode: no result", epochs=4, settings=settings)


def main() -> int:
    """Run the tasks, or report on them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--contenders", nargs="+", choices=[c.name for c in TASKS["autoencoder"].contenders])
    parser.add_argument("--trials", type=int, default=5, help="runs in which each optimizer is tuned (5)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, help="another full schedule than the task's")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (1)")
    parser.add_argument("--quick", action="store_true", help="a small task, two trials, one seed")
    parser.add_argument("--report-only", action="store_true", help="table and picture of the runs that are finished")
    parser.add_argument("--out", type=Path, default=Path("runs/convergence"))
    options = parser.parse_args()
    for name, value in (("trials", options.trials), ("epochs", options.epochs), ("jobs", options.jobs)):
        if value is not None and value < 1:
            raise UserError(f"--{name} must be at least 1, but got {value}")
    if TUNING_SEED in options.seeds:
        raise UserError(f"--seeds must not have {TUNING_SEED}: with it the optimizers are tuned")
    if len(set(options.seeds)) < len(options.seeds):  # one run would count several times in the mean
        raise UserError(f"--seeds must differ, but got {' '.join(map(str, options.seeds))}")
    tasks = [TASKS[name] for name in options.task]
    if options.quick:
        tasks, options.trials, options.seeds = [quick(TASKS["autoencoder"])], 2, options.seeds[:1]
    console = Console()
    without: list[str] = []  # for each task that has no results to report, the reason
    for task in tasks:
        names = options.contenders or [each.name for each in task.contenders]
        bench = Bench(task, options.out / task.name, options.epochs or task.epochs, options.trials, options.jobs,
                      console)  # fmt: skip
        try:
            done = options.report_only
            with handling_signals(bench.end):
                runs = bench.finished if done else bench.all_runs
                bench.report(*runs(options.seeds, names), options.seeds)
            if bench.ended.is_set():  # set during the report: the next task must not begin
                raise EndedEarlyError
        except EndedEarlyError:
            console.print("ended early; the same command goes on")
            return INTERRUPTED
        except NoTargetError as error:
            if not options.report_only:
                raise UserError(str(error)) from error
            without.append(str(error))
        except ValueError as error:
            raise UserError(str(error)) from error
    if len(without) == len(tasks):
        raise UserError("\n       ".join(without))
    for line in without:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    run_program(main)
