"""The benchmark's search and results: the same trials for everybody, and numbers that follow from the lines."""

import json
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from scripts.convergence import picture, results, search
from scripts.convergence.pace import Pace
from scripts.convergence.results import Outcome
from scripts.convergence.run import Bench
from scripts.convergence.tasks import TASKS
from scripts.run_folder.folder_lock import folder_lock
from scripts.settings.yaml_config import differences, load_config, save_config, validate
from tests.support.paths import ROOT
from tests.support.waiting import wait_until
from thor.runtime.errors import UserError

AUTOENCODER = TASKS["autoencoder"]
EACH = [(task, contender) for task in TASKS.values() for contender in task.contenders]


@pytest.mark.parametrize(("task", "contender"), EACH, ids=[f"{task.name}-{c.name}" for task, c in EACH])
def test_every_trial_is_a_valid_run_within_its_space(task, contender):
    drawn = search.trials(task, contender, 6)
    assert drawn[0] == contender.start and drawn[:3] == search.trials(task, contender, 3)
    assert len({json.dumps(values, sort_keys=True) for values in drawn}) == 6
    for values in drawn:
        settings = validate(search.settings(task, contender, values, 7, 8))
        assert (settings.optimizer, settings.seed) == (contender.optimizer, 7)
        assert settings.epochs == round(8 * values.get("epochs_share", 1.0))
        for path, allowed in contender.space.items():
            if isinstance(allowed, tuple):
                assert allowed[0] <= values[path] <= allowed[1]
            else:
                assert values[path] in allowed


def test_optimizers_of_a_task_differ_in_nothing_but_the_optimizer():
    """Network, data, batch and seed are the task's; a variant of THOR differs from the tuned one in its trace rule."""
    for task in TASKS.values():
        runs = {c.name: search.settings(task, c, dict(c.start), 1, 8) for c in task.contenders}
        own = {"optimizer", "epochs", "thor", "momentum", "adam", "adafactor", "muon", "soap"}
        assert len({json.dumps({k: v for k, v in run.items() if k not in own}) for run in runs.values()}) == 1
        tuned = runs["thor_nt"]["thor"]
        assert tuned["refresh"] == "thor_nt"
        for name, stops in (("thor", False), ("thor_stop", True)):
            variant, rule = runs[name]["thor"], runs[name]["thor"]["refresh"]
            assert variant | {"refresh": "thor_nt"} == tuned
            assert rule["update"] > 0 and (rule["stop"] > 0) == stops
            assert task.contender(name).tuned_as == "thor_nt"


def outcome(contender, seed, errors, compiling=2.0):
    """Evaluated every half epoch of ten steps, 5 s each."""
    lines = [
        {"epoch": (i + 1) / 2, "step": 5 * (i + 1), "test_error": error}
        | {"seconds": compiling + 5.0 * (i + 1), "compiling": compiling}
        for i, error in enumerate(errors)
    ]
    return Outcome(contender, seed, tuple(lines), 8, 2**30)


RUNS = [
    outcome("momentum", 1, [9.0, 8.0, 7.0]),
    outcome("adam", 1, [9.0, 6.0, 4.0, 5.0]),
    outcome("adam", 2, [9.0, 7.0, 6.5, 6.0]),
    outcome("thor", 1, [6.0, 5.0, 3.0], compiling=20.0),
    outcome("thor", 2, [4.0, 3.0], compiling=20.0),
    outcome("kfac", 1, [8.0, 7.0]),
]


def test_the_best_first_order_optimizer_sets_the_target():
    assert results.target_of(AUTOENCODER, RUNS, {}) == ("adam", 5.0)
    with pytest.raises(ValueError, match="autoencoder: none of momentum, adam, adafactor has finished"):
        results.target_of(AUTOENCODER, RUNS[3:], {})


def test_time_to_target_by_hand():
    rows = {row.contender: row for row in results.rows(AUTOENCODER, RUNS, {}, "adam", 5.0)}
    assert list(rows) == ["momentum", "adam", "thor", "kfac"]
    thor = rows["thor"]  # epochs 1 and 0.5
    assert (thor.epochs, thor.steps, thor.seconds, thor.seconds_with_compiling) == (0.75, 7.5, 7.5, 27.5)
    assert thor.values == (3.0, 3.0) and thor.spread == 0.0 and thor.reached == 2
    assert rows["adam"].reached == 1 and rows["adam"].epochs == 1.5 and rows["adam"].value == 5.0
    assert rows["kfac"].reached == 0 and rows["kfac"].epochs is None
    text = picture.markdown(AUTOENCODER, list(rows.values()), {}, "adam", 5.0)
    pairs = "0.62 x, 0.62 x (2 of 2)"
    reached = "0.75 (0.50 x) | 8 | 8 (0.50 x) | 28 (1.62 x) | 2 of 2"
    assert f"| thor | 3.000 ± 0.000 | 3.000 | {reached} | {pairs} | 8 | 1024 |" in text
    missed = "not reached"
    assert f"| kfac | 7.000 ± 0.000 | 7.000 | {' | '.join([missed] * 4)} | 0 of 1 | {missed} | 8 | 1024 |" in text
    assert "| adam | 5.000 ± 1.414 | 5.500 |" in text, "its seeds end at 5.0 and 6.0, the first after its best"


def test_runs_that_broke_down_are_told_and_set_no_target():
    """Momentum's one seed that held out would beat Adam; with another that broke down it is luck."""
    runs = [*RUNS, outcome("momentum", 2, [2.0])]
    assert results.target_of(AUTOENCODER, runs, {}) == ("momentum", 4.5)
    broken = {"momentum": 1, "thor": 1}
    assert results.target_of(AUTOENCODER, runs, broken) == ("adam", 5.0)
    with pytest.raises(results.NoTargetError, match="none of momentum, adam, adafactor has finished with every seed"):
        results.target_of(AUTOENCODER, runs, {"adam": 1, "momentum": 2})
    rows = results.rows(AUTOENCODER, runs, broken, "adam", 5.0)
    text = picture.markdown(AUTOENCODER, rows, broken, "adam", 5.0)
    assert "2 of 3" in next(line for line in text.splitlines() if line.startswith("| thor |"))
    assert text.endswith("thor: 1 of its runs broke down (loss or gradients not finite).")


def test_each_seed_against_the_setters_own_best_value():
    """Adam's seed 2 never reaches the mean of 5, and counts nowhere above; its own 6.0 after two epochs does."""
    rows = {row.contender: row for row in results.rows(AUTOENCODER, RUNS, {}, "adam", 5.0)}
    pairs = {name: (row.own_epochs, row.own_seconds, row.own_reached) for name, row in rows.items()}
    assert pairs["adam"] == (1.0, 1.0, 2), "its own best value by definition"
    assert pairs["thor"] == ((1.5 / 1.5 + 0.5 / 2.0) / 2, (15.0 / 15.0 + 5.0 / 20.0) / 2, 2)
    assert pairs["momentum"] == pairs["kfac"] == (None, None, 0)
    alone = {row.contender: row for row in results.rows(AUTOENCODER, [*RUNS[:2], RUNS[4]], {}, "adam", 5.0)}
    assert alone["thor"].own_reached == 0, "a seed with which the setter was not trained has no pair"


def test_what_is_compiled_after_the_target_was_reached_does_not_shorten_the_way_to_it():
    lines = [
        {"epoch": i, "step": 10 * i, "test_error": 6.0 - i, "seconds": 3.0 + 10.0 * i, "compiling": 3.0 + 8.0 * (i > 1)}
        for i in (1, 2)
    ]
    (row,) = results.rows(AUTOENCODER, [Outcome("adam", 1, tuple(lines), 8, 2**30)], {}, "adam", 5.0)
    assert (row.seconds, row.seconds_with_compiling) == (10.0, 13.0)


def test_what_is_tuned():
    assert results.first_of_best(AUTOENCODER, [7.0, None, 3.0, 3.0]) == 2
    assert results.first_of_best(TASKS["resnet8-128"], [0.7, None, 0.9, 0.8]) == 2
    assert results.first_of_best(AUTOENCODER, [None, None]) == 0


@pytest.mark.parametrize("text", ["", "[]", '{"finished": true}', '{"finished": true, "phases": [], "refreshes": 1}'])
def test_a_damaged_summary_is_named(text, tmp_path):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ValueError, match=r"summary\.json: no summary of a run \(.*remove the run's folder"):
        results.read_outcome(tmp_path, "adam", 1, "test_error")


def test_the_picture(tmp_path):
    picture.draw(AUTOENCODER, RUNS, 5.0, tmp_path / "results.png")
    assert (tmp_path / "results.png").stat().st_size > 20_000


@pytest.fixture
def one_run(tmp_path):
    """A benchmark of six epochs, and a function that makes Adam's run of a name a finished one."""
    bench = Bench(AUTOENCODER, tmp_path / "autoencoder", 6, 1, 1, Console(quiet=True))
    adam = AUTOENCODER.contender("adam")

    def finish(name, seed):
        folder = bench.folder / "adam" / name
        folder.mkdir(parents=True)
        values = search.settings(AUTOENCODER, adam, dict(adam.start), seed, 6)
        save_config(validate({**values, "out": "elsewhere", "keep": 1}), folder / "config.yaml")
        line = {"kind": "eval", "epoch": 1, "step": 10, "test_loss": 4.0, "test_error": 4.0}
        line |= {"seconds": 9.0, "compiling": 2.0}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        summary = {"finished": True, "refreshes": {"update": 0}, "memory": {"peak": 2**20}}
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    return bench, adam, finish


@pytest.mark.parametrize("broke_down", [False, True])
def test_a_finished_run_is_reused_only_with_its_own_settings(one_run, broke_down):
    bench, adam, finish = one_run
    folder = finish("seed-1", 1)
    if broke_down:
        (folder / "summary.json").unlink()
        (folder / "failed.txt").write_text("not finite\n")
    found = bench.run(adam, dict(adam.start), 1, "seed-1")
    assert (found is None) == broke_down and bench.pace.done == 1 and bench.pace.seconds == []
    rarer = replace(AUTOENCODER, settings={**AUTOENCODER.settings, "eval_every_steps": 7})
    for other, values, changed in [
        (replace(bench, epochs=8), {}, "epochs: 6 -> 8"),
        (bench, {"adam.learning_rate": 0.5}, f"adam.learning_rate: {adam.start['adam.learning_rate']} -> 0.5"),
        (replace(bench, task=rarer), {}, "-> 7"),
    ]:
        with pytest.raises(UserError, match=r"adam/seed-1: .* other settings .*remove the folder, or give") as caught:
            other.run(adam, dict(adam.start) | values, 1, "seed-1")
        assert changed in str(caught.value)


def test_a_report_counts_the_trials_that_are_there_and_passes_over_tasks_without_runs(one_run):
    folder = one_run[2]("seed-1", 1)
    (folder.parent / "trials.jsonl").write_text('{"trial": 0}\n{"trial": 1}\n')
    out = folder.parents[2]
    job = bench("--report-only", "--task", "language", "autoencoder", "--out", out)
    assert job.returncode == 0, job.stderr
    assert "4.000 ± 0.000 | 4.000 | 1.00" in job.stdout
    assert job.stdout.endswith("language: none of momentum, adam, adafactor has finished, so that there is no target\n")
    assert json.loads((out / "autoencoder" / "results.json").read_text())["trials"] == {"adam": 2}


def test_a_report_says_how_long_its_runs_were_and_whose_broke_down(one_run):
    bench, _, finish = one_run
    finish("seed-1", 1)
    (finish("seed-2", 2) / "summary.json").unlink()
    (bench.folder / "adam" / "seed-2" / "failed.txt").write_text("not finite\n")
    report = replace(bench, epochs=10, jobs=2)
    found, broken = report.finished([1, 2, 3], ["adam", "momentum"])
    assert [each.seed for each in found] == [1] and dict(broken) == {"adam": 1}
    assert report.epochs == 6, "as the run was made, whatever the command line says"
    longer = load_config(finish("seed-3", 3) / "config.yaml").model_copy(update={"epochs": 8})
    save_config(longer, bench.folder / "adam" / "seed-3" / "config.yaml")
    with pytest.raises(UserError, match=r"several benchmarks: .*seed-1: 6 epochs, .*seed-3: 8 epochs"):
        report.finished([1, 3], ["adam"])


def test_an_error_ends_the_benchmark_before_another_run_is_trained(one_run, monkeypatch):
    """The second run would train for minutes before the first one's error is told."""
    bench, adam, _ = one_run
    begun = []

    class Dying:
        def __init__(self, command, **_):
            begun.append(command)

        def wait(self):
            return 137

    monkeypatch.setattr(subprocess, "Popen", Dying)
    with pytest.raises(UserError, match="seed-1: training ended with status 137"):
        bench.run_all([(adam, dict(adam.start), seed, f"seed-{seed}") for seed in (1, 2, 3)])
    assert len(begun) == 1


def test_of_two_runs_at_once_the_error_that_ended_them_is_told(one_run, monkeypatch):
    """The other is asked to end, and is the first in order: what it raises is no answer."""
    bench, adam, _ = one_run
    bench.jobs, asked = 2, threading.Event()

    class Dying:
        def __init__(self, command, **_):
            self.dies = "seed-2" in str(command)

        def terminate(self):
            asked.set()

        def wait(self):
            if self.dies:
                return 137
            assert asked.wait(20)
            return 130

    monkeypatch.setattr(subprocess, "Popen", Dying)
    with pytest.raises(UserError, match="seed-2: training ended with status 137"):
        bench.run_all([(adam, dict(adam.start), seed, f"seed-{seed}") for seed in (1, 2, 3)])


def test_the_time_left_is_told_by_the_runs_of_this_process():
    pace = Pace(total=4, jobs=1)
    pace.found()
    assert pace.trained(300.0) == "300 s (run 2 of 4, about 10 min left)"
    assert pace.trained(100.0) == "100 s (run 3 of 4, about 3 min left)"
    assert pace.trained(5.0) == "5 s (run 4 of 4)"
    language = Bench(TASKS["language"], Path(), 4, 3, 1, Console(quiet=True))
    assert language.count([1, 2], ["adam", "thor_nt", "thor"]) == 2 * 3 + 3 * 2, "thor is tuned as thor_nt is"


def bench(*arguments, timeout=60):
    command = [sys.executable, str(ROOT / "scripts" / "convergence" / "run.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trials", 0], "--trials must be at least 1, but got 0"),
        (["--epochs", -1], "--epochs must be at least 1, but got -1"),
        (["--seeds", 0, 1], "--seeds must not have 0: with it the optimizers are tuned"),
        (["--seeds", 1, 2, 1], "--seeds must differ, but got 1 2 1"),
        (
            ["--contenders", "thor", "kfac", "--out", "nowhere"],
            "autoencoder: one of momentum, adam, adafactor has to take part",
        ),
        (["--report-only", "--out", "nowhere"], "autoencoder: none of momentum, adam, adafactor has finished"),
    ],
)
def test_what_is_refused(arguments, words):
    job = bench(*arguments)
    assert job.returncode == 2 and words in job.stderr and "Traceback" not in job.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_end_alone_it_ends_its_training_too(number, tmp_path):
    """As a scheduler asks, which knows the one process: a training left behind would hold its folder and the cores."""
    command = [sys.executable, str(ROOT / "scripts" / "convergence" / "run.py"), "--quick", "--epochs", "99"]
    run = tmp_path / "quick" / "momentum" / "trial-0"
    log = run.with_suffix(".log")
    with subprocess.Popen([*command, "--out", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as job:
        wait_until(lambda: (log.is_file() and "epoch 1/" in log.read_text()) or job.poll() is not None)
        job.send_signal(number)
        output, _ = job.communicate(timeout=60)
    assert job.returncode == 130 and output.endswith("ended early; the same command goes on\n")
    with folder_lock(run, leads=True):  # by nobody else any more
        assert any((run / "checkpoints").iterdir())
        assert json.loads((run / "summary.json").read_text())["finished"] is False


@pytest.mark.slow
def test_quick_mode_of_both_orders_is_not_done_again(tmp_path):
    """THOR is tuned without a trace rule, and with one takes over what was found."""
    three = ["--quick", "--contenders", "adam", "thor_nt", "thor", "--out", tmp_path]
    first = bench(*three, timeout=600)
    assert first.returncode == 0, first.stderr
    done = [line.split(":")[0] for line in first.stdout.splitlines() if line.startswith("quick ")]
    tuning = [f"quick {name} {run}" for name in ("adam", "thor_nt") for run in ("trial-0", "trial-1")]
    assert done == tuning + [f"quick {name} seed-1" for name in ("adam", "thor_nt", "thor")]
    assert "(run 7 of 7)" in first.stdout
    folder = tmp_path / "quick"
    for name in ("adam", "thor_nt"):
        trials = [json.loads(line) for line in (folder / name / "trials.jsonl").read_text().splitlines()]
        assert [line["trial"] for line in trials] == [0, 1] and all(line["test_error"] > 0 for line in trials)
    tuned, with_rule = (load_config(folder / name / "seed-1" / "config.yaml") for name in ("thor_nt", "thor"))
    assert {change.split(":")[0].rsplit(".", 1)[0] for change in differences(tuned, with_rule)} == {"thor.refresh"}
    again = bench(*three, timeout=60)
    assert again.returncode == 0 and "quick adam" not in again.stdout, "finished runs are read, not repeated"
    found = json.loads((folder / "results.json").read_text())
    assert (found["set_by"], found["trials"]) == ("adam", {"adam": 2, "thor_nt": 2})
    assert [row["contender"] for row in found["rows"]] == ["adam", "thor_nt", "thor"]
