"""Runs of scripts/train.py in processes of their own: begun once, resumed where they ended, read when finished."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from scripts.common.atomic_write import write_atomically
from scripts.common.cpu_cores import core_binder, disjoint_cores, thread_limit
from scripts.common.errors import INTERRUPTED, STOPPED, USAGE_ERROR
from scripts.convergence import results
from scripts.convergence.pace import Pace
from scripts.convergence.results import FAILED, Run
from scripts.run_folder.restore import CONFIG
from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import differences, load_config, save_config
from thor.runtime.errors import UserError

TRAIN = Path(__file__).resolve().parents[1] / "train.py"


class Job(NamedTuple):
    """A run to do.

    Attributes:
        folder: Its folder.
        settings: Its configuration.
        metric: The metric that is read.
        known: The run itself, if it is known.
        in_one_go: Begin anew after an interrupt: a run that goes on compiles twice, and its seconds tell so.
    """

    folder: Path
    settings: TrainSettings
    metric: str
    known: Run | None = None
    in_one_go: bool = False


class EndedEarlyError(Exception):
    """A run was asked to end."""


@dataclass
class Bench:
    """Does runs, ``jobs`` of them at a time.

    Attributes:
        jobs: Number of runs at the same time.
        console: Where finished runs are told.
        read_only: Nothing is trained.
        ended: If set, no further run begins.
        running: The processes of the current runs.
        pace: Progress.
        error: The first error of a run.
        share: Environment that gives a run its share of the cores.
    """

    jobs: int
    console: Console
    read_only: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    error: UserError | None = None
    share: dict[str, str] = field(default_factory=dict)

    def end(self, *_: object) -> None:
        """Start no further run, and ask the current ones to write a checkpoint and end."""
        self.ended.set()
        for process in tuple(self.running):
            process.terminate()

    def run_all(self, jobs: Sequence[Job]) -> list[Run | None]:
        """Do runs, each in its own process on its own cores; None for those that are not finished if `read_only`."""
        self.share = thread_limit(self.jobs) if self.jobs > 1 else {}
        with ThreadPoolExecutor(self.jobs, initializer=core_binder(disjoint_cores(self.jobs))) as pool:
            try:
                return list(pool.map(self.run, jobs))
            except (EndedEarlyError, UserError) as raised:  # of the first failed run in order, not in time
                raise self.error or raised from None

    def run(self, job: Job) -> Run | None:
        """Train, unless the run is known or finished; None if it is not and `read_only`."""
        folder, seed, settings = job.folder, job.settings.seed, _stored(job)
        found = self.read(job)
        if found is None:
            found = job.known
        if found is not None or self.read_only:
            self.pace.found()
            return found
        if self.ended.is_set():
            raise EndedEarlyError
        folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        status = self._train(folder, settings, "--overwrite" if job.in_one_go else "--resume=auto")
        if status in (INTERRUPTED, STOPPED):
            self.ended.set()
        if status and self.ended.is_set():
            raise EndedEarlyError
        found = results.read_run(folder, seed, job.metric)
        if found is None:
            self._broke_down(folder, status)
            found = Run(seed=seed)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # hundreds of runs would fill the disk
        shown = "broke down" if found.broke_down else f"{job.metric} {found.points[-1].value:.5g}"
        text = f"{'/'.join(folder.parts[-3:])}: {shown}, {self.pace.trained(time.monotonic() - start)}"
        self.tell(text)
        return found

    def read(self, job: Job) -> Run | None:
        """What a run has found; None if it is not finished."""
        _check_same(job.folder, _stored(job))
        return results.read_run(job.folder, job.settings.seed, job.metric)

    def tell(self, text: str) -> None:
        """Print a line as it is."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _train(self, folder: Path, settings: TrainSettings, how: str) -> int:
        """Run train.py with a flag and return its status."""
        path = _beside(folder, ".yaml")
        save_config(settings, path)
        with _beside(folder, ".log").open("a") as log:
            command = [sys.executable, str(TRAIN), "--config", str(path), how]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | self.share)
            self.running.append(process)
            if self.ended.is_set():  # it may have been set since the check before
                process.terminate()
            status = process.wait()
            self.running.remove(process)
        return status

    def _broke_down(self, folder: Path, status: int) -> None:
        """Mark a run whose loss or gradients were not finite, which is a result; any other reason is an error."""
        last = "".join(_beside(folder, ".log").read_text(errors="replace").strip().splitlines()[-1:])
        if status != USAGE_ERROR or "not finite" not in last:
            told = UserError(f"{folder}: training ended with status {status}: {last}")
            self.error = self.error or told
            self.end()  # else the next run and a parallel one would finish before this error is shown
            raise told
        write_atomically(folder / FAILED, last + "\n")


def _stored(job: Job) -> TrainSettings:
    """The settings of a run in its folder."""
    return job.settings.model_copy(update={"out": str(job.folder), "keep": 1})


def _beside(folder: Path, ending: str) -> Path:
    """A file beside a run's folder; the folder's name may have points, as that of a learning rate has."""
    return folder.with_name(folder.name + ending)


def _check_same(folder: Path, settings: TrainSettings) -> None:
    """Raise an error if the folder has a run with other settings, which cannot be in the same table.

    The evaluation interval is compared too, because values and the way to the target depend on it.
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
