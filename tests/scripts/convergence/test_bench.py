"""Runs in processes of their own: reused with their own settings only, and an error ends all of them."""

import json
import subprocess
import threading

import pytest
from rich.console import Console

from scripts.convergence import rules, search
from scripts.convergence.bench import Bench, EndedEarlyError, Job
from scripts.convergence.pace import Pace
from scripts.convergence.results import Run
from scripts.settings.yaml_config import save_config
from thor.runtime.errors import UserError

FULL = rules.load(rules.DEFAULT)


def job(folder, seed, fixed=FULL, **values):
    first = search.trials(fixed, "autoencoder", "adam")[0]
    settings = search.settings(fixed, "autoencoder", "adam", first | values, seed)
    return Job(folder / "adam" / f"to-target-{seed}", settings, "test_error")


def finish(job, value=4.0):
    """Make the folder of a job one of a finished run."""
    job.folder.mkdir(parents=True)
    save_config(job.settings.model_copy(update={"out": "elsewhere", "keep": 1}), job.folder / "config.yaml")
    line = {"kind": "eval", "epoch": 1, "step": 10, "test_loss": value, "test_error": value}
    (job.folder / "metrics.jsonl").write_text(json.dumps(line | {"seconds": 9.0, "compiling": 2.0}) + "\n")
    summary = {"finished": True, "refreshes": {"update": 3}, "memory": {"peak": 2**20}}
    (job.folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def bench():
    return Bench(1, Console(quiet=True))


def test_a_run_that_is_known_is_not_trained(bench, tmp_path):
    known = Run(seed=1)
    asked = job(tmp_path, 1)._replace(known=known)
    assert bench.run_all([asked]) == [known]
    assert bench.pace.done == 1 and not asked.folder.exists()


def test_a_run_of_the_folder_goes_before_one_that_is_known(bench, tmp_path):
    """It may be one that was repeated after a bug was mended."""
    own = job(tmp_path, 1)
    finish(own)
    assert bench.run(own._replace(known=Run(seed=1))).points[0].value == 4.0


@pytest.mark.parametrize("broke_down", [False, True])
def test_a_finished_run_is_reused_only_with_its_own_settings(bench, tmp_path, broke_down):
    own = job(tmp_path, 1)
    finish(own)
    if broke_down:
        (own.folder / "summary.json").unlink()
        (own.folder / "failed.txt").write_text("not finite\n")
    found = bench.run(own)
    assert found.broke_down == broke_down and bench.pace.done == 1 and bench.pace.seconds == []
    if not broke_down:
        assert (found.seed, found.points[0].value, found.refreshes, found.peak) == (1, 4.0, 3, 2**20)
    task = FULL.tasks["autoencoder"]
    for changed, values, message in [
        ({"epochs": 8}, {}, "epochs: 10 -> 8"),
        ({}, {"adam.learning_rate": 0.5}, "adam.learning_rate: 0.001 -> 0.5"),
        ({"settings": {**task.settings, "eval_every_steps": 7}}, {}, "eval_every_steps: 10 -> 7"),
    ]:
        tasks = {**FULL.tasks, "autoencoder": task.model_copy(update=changed)}
        other = job(tmp_path, 1, FULL.model_copy(update={"tasks": tasks}), **values)
        with pytest.raises(
            UserError, match=r"adam/to-target-1: .* other settings .*remove the folder, or give"
        ) as caught:
            bench.run(other)
        assert message in str(caught.value)


def test_a_value_that_is_not_finite_is_a_run_that_broke_down(bench, tmp_path):
    own = job(tmp_path, 1)
    finish(own, float("inf"))
    assert bench.run(own).broke_down


def test_nothing_is_trained_for_a_report(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    finish(job(tmp_path, 1))
    bench.read_only = True
    found = bench.run_all([job(tmp_path, 1), job(tmp_path, 2)])
    assert found[0].seed == 1 and found[1] is None and not job(tmp_path, 2).folder.exists()


class Process:
    """A training that ends at once."""

    status = 137
    words = ""
    begun: list = []

    def __init__(self, command, stdout=None, **_):
        self.begun.append(command)
        stdout.write(self.words)
        stdout.flush()

    def terminate(self):
        pass

    def wait(self):
        return self.status


def test_an_error_ends_the_benchmark_before_another_run_is_trained(bench, tmp_path, monkeypatch):
    """The second run would train for minutes before the first one's error is told."""
    monkeypatch.setattr(subprocess, "Popen", type("Dying", (Process,), {"begun": (begun := [])}))
    with pytest.raises(UserError, match="to-target-1: training ended with status 137"):
        bench.run_all([job(tmp_path, seed) for seed in (1, 2, 3)])
    assert len(begun) == 1


def test_a_training_that_broke_down_is_a_result_and_is_not_done_again(bench, tmp_path, monkeypatch):
    words = "epoch 1\nerror: step 3: the loss is not finite\n"
    monkeypatch.setattr(
        subprocess, "Popen", type("Diverging", (Process,), {"words": words, "status": 2, "begun": (begun := [])})
    )
    for _ in range(2):
        (found,) = bench.run_all([job(tmp_path, 1)])
        assert found.broke_down and len(begun) == 1
    assert "not finite" in (job(tmp_path, 1).folder / "failed.txt").read_text()


@pytest.mark.parametrize("status", [-9, 137])
def test_a_training_that_was_killed_is_no_result_whatever_it_has_told(status, bench, tmp_path, monkeypatch):
    """A step that was not finite was skipped, and then the system killed the process."""
    words = "step 7: loss or gradients are not finite, step skipped (1 in a row)\n"
    monkeypatch.setattr(
        subprocess, "Popen", type("Killed", (Process,), {"words": words, "status": status, "begun": []})
    )
    with pytest.raises(UserError, match=f"training ended with status {status}"):
        bench.run_all([job(tmp_path, 1)])
    assert not (job(tmp_path, 1).folder / "failed.txt").exists()


@pytest.mark.parametrize("in_one_go", [False, True])
def test_a_run_whose_seconds_count_begins_anew_after_an_interrupt(in_one_go, bench, tmp_path, monkeypatch):
    """A run that goes on compiles its graphs twice, and its seconds would say so."""
    monkeypatch.setattr(subprocess, "Popen", type("Asked", (Process,), {"status": 3, "begun": (begun := [])}))
    for _ in range(2):
        bench.ended.clear()
        with pytest.raises(EndedEarlyError):
            bench.run(job(tmp_path, 1)._replace(in_one_go=in_one_go))
    assert [command[-1] for command in begun] == ["--overwrite" if in_one_go else "--resume=auto"] * 2


def test_runs_whose_names_have_points_do_not_share_their_files(bench, tmp_path, monkeypatch):
    words = "error: step 3: the loss is not finite\n"
    monkeypatch.setattr(subprocess, "Popen", type("Diverging", (Process,), {"words": words, "status": 2, "begun": []}))
    runs = [Job(tmp_path / f"rate-{rate}", job(tmp_path, 1).settings, "test_error") for rate in (0.1, 0.2)]
    bench.run_all(runs)
    assert {path.name for path in tmp_path.glob("rate-*.yaml")} == {"rate-0.1.yaml", "rate-0.2.yaml"}
    assert {path.name for path in tmp_path.glob("rate-*.log")} == {"rate-0.1.log", "rate-0.2.log"}


def test_checkpoints_of_finished_runs_are_removed(bench, tmp_path, monkeypatch):
    """Those of hundreds of runs would fill the disk, and nothing reads them."""
    own = job(tmp_path, 1)

    class Training(Process):
        status = 0

        def wait(self):
            own.folder.rmdir()
            finish(own)
            (own.folder / "checkpoints").mkdir()
            (own.folder / "checkpoints" / "step-1.ckpt").touch()
            return 0

    monkeypatch.setattr(subprocess, "Popen", Training)
    assert bench.run(own).points and not (own.folder / "checkpoints").exists()
    assert (own.folder / "metrics.jsonl").is_file()


def test_of_two_runs_at_once_the_error_that_ended_them_is_told(bench, tmp_path, monkeypatch):
    """The other is asked to end, and is the first in order: what it raises is no answer."""
    bench.jobs, asked = 2, threading.Event()

    class Dying:
        def __init__(self, command, **_):
            self.dies = "to-target-2" in str(command)

        def terminate(self):
            asked.set()

        def wait(self):
            if self.dies:
                return 137
            assert asked.wait(20)
            return 130

    monkeypatch.setattr(subprocess, "Popen", Dying)
    with pytest.raises(UserError, match="to-target-2: training ended with status 137"):
        bench.run_all([job(tmp_path, seed) for seed in (1, 2, 3)])


def test_the_time_left_is_told_by_the_runs_of_this_process():
    pace = Pace(total=4, jobs=1)
    pace.found()
    assert pace.trained(300.0) == "300 s (run 2 of 4, about 10 min left)"
    assert pace.trained(100.0) == "100 s (run 3 of 4, about 3 min left)"
    assert pace.trained(5.0) == "5 s (run 4 of 4)"
