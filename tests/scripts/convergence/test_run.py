"""The program: what it refuses, its plan, and that it ends and goes on."""

import json
import signal
import subprocess
import sys

import matplotlib.image
import pytest

from scripts.convergence import results
from scripts.run_folder.folder_lock import folder_lock
from scripts.settings.yaml_config import differences, load_config
from tests.support.paths import ROOT
from tests.support.waiting import wait_until

PUBLISHED = ROOT / "docs" / "results" / "benchmark.json"
PROGRAM = [sys.executable, str(ROOT / "scripts" / "convergence" / "run.py")]


def bench(*arguments, timeout=60):
    return subprocess.run([*PROGRAM, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", 0], "--jobs: must be at least 1, but got 0"),
        (["--timed", "--jobs", 2], "--timed trains one run at a time on all cores: leave --jobs out"),
        (["--task", "mnist"], "--task: 'mnist' must be one of autoencoder, resnet8-128"),
        (["--task", "vit", "vit"], "--task: 'vit' is given twice"),
        (["--only", "adamw"], "--only: 'adamw' must be one of momentum, adam"),
        (["--rules", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--take", "nowhere.json"], "nowhere.json: no such file"),
        (["--take", ROOT / "README.md"], "README.md: Invalid JSON: expected value at line 1 column 1; --take takes a"),
        (["--take", PUBLISHED.parent], "results: cannot be read"),
        (["--take", PUBLISHED.with_name("benchmark-autoencoder.png")], "benchmark-autoencoder.png: cannot be read"),
        (["--take", PUBLISHED], "benchmark.json: was made by other rules; give the --rules"),
        (
            ["--report-only", "--task", "vit", "--out", "nowhere"],
            "vit: momentum, adam, adafactor has not finished all trials, so that there is no target",
        ),
    ],
)
def test_what_is_refused(arguments, words):
    job = bench(*arguments)
    assert job.returncode == 2 and words in job.stderr and "Traceback" not in job.stderr


def test_results_of_another_machine_are_refused(tmp_path):
    elsewhere = results.read(PUBLISHED).model_copy(update={"machine": {"processor": "another one"}})
    results.write(elsewhere, tmp_path / "results.json")
    small = ROOT / "scripts" / "convergence" / "rules_small.yaml"
    job = bench("--take", tmp_path / "results.json", "--rules", small, "--report-only", "--out", tmp_path / "out")
    assert job.returncode == 2 and "was measured on another machine (processor another one; here: proc" in job.stderr


def test_the_plan_is_told_and_nothing_is_trained(tmp_path):
    job = bench("--dry-run", "--task", "vit", "--only", "thor", "--jobs", 2, "--out", tmp_path / "out")
    assert job.returncode == 0, job.stderr
    assert "| vit | 20 | 10 | " in job.stdout and "With 2 runs at a time" in job.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_end_alone_it_ends_its_training_too(number, tmp_path):
    """As a scheduler asks, which knows the one process: a training left behind would hold its folder and the cores."""
    long = tmp_path / "long.yaml"
    long.write_text(f"base: {ROOT / 'scripts' / 'convergence' / 'rules.yaml'}\nquick: {{epochs: 99}}\n")
    run = tmp_path / "autoencoder" / "adam" / "trial-0"
    log = run.with_suffix(".log")
    command = [*PROGRAM, "--quick", "--rules", str(long), "--out", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as job:
        wait_until(lambda: (log.is_file() and "epoch 1/" in log.read_text()) or job.poll() is not None)
        job.send_signal(number)
        output, _ = job.communicate(timeout=60)
    assert job.returncode == 130 and output.endswith("ended early; the same command goes on\n")
    with folder_lock(run, leads=True):  # by nobody else any more
        assert any((run / "checkpoints").iterdir())
        assert json.loads((run / "summary.json").read_text())["finished"] is False


@pytest.mark.slow
def test_quick_mode_is_not_done_again(tmp_path):
    """THOR is tuned without a trace rule, and with one takes over what was found."""
    first = bench("--quick", "--out", tmp_path, timeout=600)
    assert first.returncode == 0, first.stderr
    done = [line.split(":")[0] for line in first.stdout.splitlines() if line.startswith("autoencoder/")]
    assert done[:4] == [f"autoencoder/{name}/trial-{index}" for name in ("adam", "thor") for index in (0, 1)]
    assert {name.split("/")[1] for name in done[4:]} == {"adam", "thor", "thor_stop"}
    folder = tmp_path / "autoencoder"
    tuned, with_rule = (load_config(folder / name / "to-target-1" / "config.yaml") for name in ("thor", "thor_stop"))
    assert {change.split(":")[0].rsplit(".", 1)[0] for change in differences(tuned, with_rule)} == {"thor.refresh"}
    found = results.read(tmp_path / "results.json")
    assert (found.rules.trials, found.tasks["autoencoder"].set_by) == (2, "adam")
    assert matplotlib.image.imread(tmp_path / "autoencoder.png").shape[1] == 1400
    again = bench("--quick", "--out", tmp_path, timeout=60)
    assert again.returncode == 0 and "autoencoder/adam" not in again.stdout, "finished runs are read, not repeated"
    assert results.read(tmp_path / "results.json") == found
    text = (tmp_path / "results.md").read_text()
    (tmp_path / "results.json").unlink()
    report = bench("--quick", "--report-only", "--out", tmp_path)
    assert report.returncode == 0 and (tmp_path / "results.md").read_text() == text
