"""A job that is killed, at any moment, loses nothing: --resume auto brings it to the numbers of an undisturbed run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from scripts.run_folder import checkpoints
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.run_folder.stop_request import BEGAN, Interrupt, stopped_by_file
from scripts.settings.yaml_config import save_config
from scripts.training import loop
from scripts.training.evaluation import Evaluator
from scripts.training.loop import train
from scripts.training.run import CHECKPOINTS
from tests.scripts.training.test_loop import last_tensors, quiet, without_times
from tests.support.paths import ROOT
from tests.support.tiny_runs import tiny_settings

pytestmark = [pytest.mark.slow, pytest.mark.jobs]

# Trains, and kills itself: while a step or an evaluation is under way, or in the middle of writing a checkpoint.
KILLED = """
import os, signal, sys
sys.path.insert(0, os.getcwd())
import scripts.train
from scripts.training import evaluation
from scripts.training import progress_display as progress
where, count, config = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def kill_at(owner, name, matches):
    own, seen = getattr(owner, name), [0]
    def function(*arguments, **options):
        seen[0] += matches(arguments)
        if seen[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return own(*arguments, **options)
    setattr(owner, name, function)

if where == "step":
    kill_at(progress.ProgressDisplay, "step", lambda arguments: True)
elif where == "evaluation":
    kill_at(evaluation.Evaluator, "__call__", lambda arguments: True)
elif where == "checkpoint":
    kill_at(os, "replace", lambda arguments: "step-" in str(arguments[1]))
sys.exit(scripts.train.main(["--config", config, "--resume", "auto"]))
"""


def killed_settings(tmp_path, out: str, accumulation: int = 1):
    """Twenty steps with everything that has state: averages, evaluations, the best checkpoint."""
    return tiny_settings(
        tmp_path, "thor", out, checkpoint_every=3, eval_every_steps=4, ema=0.9, accumulation=accumulation
    )


def at_random():
    seed = random.randrange(1000)
    choice = random.Random(seed)
    return [("step", choice.randint(1, 12)), ("checkpoint", choice.randint(1, 13))]


@pytest.mark.parametrize(
    ("accumulation", "moments"),
    [
        pytest.param(1, [("step", 3), ("checkpoint", 12)], id="decided in step 9, whose checkpoint is not whole"),
        pytest.param(2, [("checkpoint", 9)], id="decided in step 10, update 5, whose checkpoint is not whole"),
        pytest.param(1, [("checkpoint", 10)], id="in the second description of step 8, which tells of its evaluation"),
        pytest.param(1, [("evaluation", 2)], id="in the evaluation of step 8"),
        pytest.param(1, [("checkpoint", 15)], id="in the second description of step 10, which tells of the epoch"),
        pytest.param(1, [("evaluation", 3), ("checkpoint", 1)], id="in the epoch's evaluation, and when that is added"),
        pytest.param(1, at_random(), id="at random"),
    ],
)
def test_sigkill_at_any_moment_changes_no_bit(tmp_path, accumulation, moments):
    undisturbed = train(killed_settings(tmp_path, "undisturbed", accumulation), console=quiet())
    settings = killed_settings(tmp_path, "killed", accumulation)
    save_config(settings, tmp_path / "config.yaml")
    for where, count in moments:
        command = [sys.executable, "-c", KILLED, where, str(count), str(tmp_path / "config.yaml")]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert result.returncode == -signal.SIGKILL, (moments, result.stderr)
    resumed = train(settings, resume="auto", console=quiet())
    expected, found = last_tensors(undisturbed.folder), last_tensors(resumed.folder)
    assert expected.keys() == found.keys()
    different = [name for name in expected if not np.array_equal(expected[name], found[name])]
    assert not different, f"killed at {moments}"
    assert without_times(resumed.folder) == without_times(undisturbed.folder), f"killed at {moments}"
    tables = [(run.folder / "refreshes.csv").read_bytes() for run in (resumed, undisturbed)]
    assert tables[0] == tables[1]
    best = [json.loads((run.folder / CHECKPOINTS / "best.json").read_text()) for run in (resumed, undisturbed)]
    assert best[0]["best"] == best[1]["best"] and best[0]["step"] == best[1]["step"]


def test_an_epoch_is_saved_before_it_is_evaluated(tmp_path, monkeypatch):
    """Once: its tensors are not written again with what the evaluation has found."""
    settings, saved = tiny_settings(tmp_path, "momentum", eval_every=2, epochs=3), []
    save, evaluate = checkpoints.save, Evaluator.__call__

    def note_save(folder, tensors, position, keep):
        saved.append((position.step, position.epoch))
        save(folder, tensors, position, keep)

    def note_evaluation(self, *rest):
        saved.append("evaluation")
        return evaluate(self, *rest)

    monkeypatch.setattr(checkpoints, "save", note_save)
    monkeypatch.setattr(Evaluator, "__call__", note_evaluation)
    run = train(settings, console=quiet())
    assert saved == [(10, 1), (20, 1), "evaluation", (30, 2), "evaluation"]
    position = checkpoints.load(run.folder / CHECKPOINTS, 30, run.cells, run.steps_per_epoch)
    assert (position.epoch, position.step_in_epoch) == (3, 0)
    assert (position.best, position.best_step) == (run.position.best, run.position.best_step)
    best = json.loads((run.folder / CHECKPOINTS / "best.json").read_text())
    assert (best["best"], best["step"]) == (position.best, position.best_step)


def test_stop_file_and_sigterm_end_with_a_checkpoint(tmp_path, monkeypatch):
    from scripts.training.progress_display import ProgressDisplay

    settings = tiny_settings(tmp_path, "momentum")
    folder, show = Path(settings.out), ProgressDisplay.step

    def ask(self, number, *rest):
        if number == 2:  # is seen in the step after it
            (folder / "stop").touch()
        if number == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        show(self, number, *rest)

    monkeypatch.setattr(ProgressDisplay, "step", ask)
    run = train(settings, resume="auto", console=quiet())
    assert not run.finished and run.position.step == 3
    assert stopped_by_file(folder)
    assert not (folder / "stop").exists(), "or the continued run would end at once"
    assert (folder / CHECKPOINTS / "step-00000003.json").is_file()
    run = train(settings, resume="auto", console=quiet())
    assert not run.finished and run.position.step == 7 and not stopped_by_file(folder)
    run = train(settings, resume="auto", console=quiet())
    assert run.finished and run.position.step == 20
    assert [line["step"] for line in read_metrics(folder) if line["kind"] == "step"] == list(range(1, 21))


def test_a_stop_file_of_an_earlier_run_is_no_request(tmp_path):
    settings = tiny_settings(tmp_path, "momentum", epochs=1)
    Path(settings.out).mkdir()
    (Path(settings.out) / "stop").touch()
    os.utime(Path(settings.out) / "stop", (time.time() - 9, time.time() - 9))
    assert train(settings, console=quiet()).finished


def test_a_stop_file_of_a_launchers_earlier_attempt_is_a_request(tmp_path, monkeypatch):
    settings = tiny_settings(tmp_path, "momentum", epochs=1)
    Path(settings.out).mkdir()
    (Path(settings.out) / "stop").touch()
    os.utime(Path(settings.out) / "stop", (time.time() - 9, time.time() - 9))
    monkeypatch.setenv(BEGAN, str(time.time() - 60))
    run = train(settings, console=quiet())
    assert not run.finished and run.position.step == 1 and stopped_by_file(run.folder)


def test_a_stop_file_may_look_a_tick_older_than_the_run(tmp_path):
    """Linux gives a file the time of its last tick, which 20,000 of 20,000 files had before time.time() had it."""
    began = time.time()
    for age, asked in ((0.01, True), (1.0, False)):
        (tmp_path / "stop").touch()
        os.utime(tmp_path / "stop", (began - age, began - age))
        Interrupt(tmp_path, began)
        assert (tmp_path / "stop").exists() is asked


def test_a_stop_file_from_before_the_imports_were_done_ends_the_run(tmp_path):
    """The program tells when it began; MindSpore takes seconds to import."""
    settings = tiny_settings(tmp_path, "momentum", epochs=1)
    Path(settings.out).mkdir()
    (Path(settings.out) / "stop").touch()
    os.utime(Path(settings.out) / "stop", (time.time() - 2, time.time() - 2))
    assert not train(settings, console=quiet(), began=time.time() - 3).finished


def test_a_stop_file_that_is_made_while_the_run_starts_up_ends_it(tmp_path, monkeypatch):
    settings = tiny_settings(tmp_path, "momentum", epochs=1)
    monkeypatch.setattr(loop, "check_fit", lambda *_: (Path(settings.out) / "stop").touch())
    run = train(settings, console=quiet())
    assert not run.finished and run.position.step == 1 and stopped_by_file(run.folder)
