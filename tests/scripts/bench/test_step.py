"""The times of a step: what becomes of them. That each kind of step runs is tested with the kernels."""

import json
import subprocess
import sys

import mindspore as ms
import pytest

from scripts.bench import step
from scripts.common.arguments import file_to_write

TIMES = {"Momentum": 10.0, "plain": 11.0, "curvature": 20.0, "refresh": 30.0}


def test_the_mean_step_of_an_interval_has_one_refresh_and_ten_gatherings():
    assert step.amortised(TIMES, 100) == pytest.approx((30 + 9 * 20 + 90 * 11) / 100)
    assert step.amortised(TIMES, 4) == pytest.approx((30 + 3 * 20) / 4)  # each step gathers
    assert step.amortised(TIMES, 15) == pytest.approx((30 + 14 * 20) / 15)  # a tenth of it is one step
    assert step.amortised(TIMES, 25) == pytest.approx((30 + 12 * 20 + 12 * 11) / 25)  # and of it two


def test_beside_eigenbases_the_baseline_is_adam():
    found = step.summary({"Adam": [2.0, 4.0, 2.0], "plain": [3.0, 6.0, 8.0]}, "Adam")
    assert found["ratio"] == {"Adam": 1.0, "plain": 1.5}


def test_a_ratio_is_of_steps_of_one_round():
    """The second round on a machine half as fast, the third with one slow step: medians of times say 20 / 10."""
    found = step.summary({"Momentum": [10.0, 20.0, 8.0], "plain": [11.0, 22.0, 20.0]})
    assert found["ratio"] == {"Momentum": 1.0, "plain": pytest.approx(1.1)}
    assert found["ms"] == {"Momentum": 10.0, "plain": pytest.approx(11.0)}  # the ratios again
    assert found["quartiles"]["plain"] == pytest.approx([11.0, 18.0])


def test_a_step_of_rounds_of_its_own_keeps_its_ratio(monkeypatch):
    """The machine is half as fast in the second rounds: the times of both are those of the first."""
    rounds = iter(
        ({"Momentum": [10.0, 10.0], "plain": [12.0, 12.0]}, {"Momentum": [20.0, 20.0], step.OWN: [60.0, 80.0]})
    )
    monkeypatch.setattr(step, "interleaved", lambda *_: next(rounds))
    found = step.measure("lenet", 2, 2, True, {"precondition": "inverse"})
    assert found["ratio"] == pytest.approx({"Momentum": 1.0, "plain": 1.2, step.OWN: 3.5})
    assert found["ms"] == pytest.approx({"Momentum": 10.0, "plain": 12.0, step.OWN: 35.0})
    assert found["quartiles"][step.OWN] == pytest.approx([32.5, 37.5])


@pytest.mark.parametrize("name", step.NETWORKS)
def test_the_baseline_trains_as_the_other_does(name):
    """Evaluated, BatchNorm takes half of the time: Momentum's step of ResNet-20 was 4 % too short for that."""
    net, _, _ = step.network(name, batch=1)
    assert all(cell.training for _, cell in net.cells_and_names())


@pytest.fixture
def context():
    """The script chooses GRAPH_MODE for its process."""
    before = ms.get_context("mode")
    yield
    ms.set_context(mode=before)


def test_an_interrupt_loses_the_network_under_way_only(monkeypatch, tmp_path, capsys, context):
    def measure(name, *_):
        if name == "bert":
            raise KeyboardInterrupt
        ratio = {phase: time / TIMES["Momentum"] for phase, time in TIMES.items()}
        quartiles = {phase: [time - 1, time + 1] for phase, time in TIMES.items()}
        return {"ms": TIMES, "quartiles": quartiles, "ratio": ratio, "state_bytes": 2**20}

    out = tmp_path / "steps.json"
    monkeypatch.setattr(step, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["step.py", "--network", "lenet", "bert", "--no-memory", "--out", str(out)])
    with pytest.raises(KeyboardInterrupt):
        step.main()
    assert "plain                   11.0 ms  [10.0, 12.0]  1.10 x" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert list(found) == ["lenet"]
    assert found["lenet"]["amortised"]["100"] == pytest.approx(1.2)


def test_the_process_whose_memory_is_measured_has_the_options_of_the_one_that_is_timed(monkeypatch, context):
    asked, timed = [], []

    def in_a_process_of_its_own(command, **_):
        monkeypatch.setattr(sys, "argv", command[1:])
        step.main()
        return subprocess.CompletedProcess(command, 0, "PEAK 1000\n")

    def measure(name, rounds, size, own, options):
        timed.append((name, size, options))
        return {"ms": TIMES, "quartiles": {}, "ratio": TIMES, "state_bytes": 0}

    monkeypatch.setattr(step.subprocess, "run", in_a_process_of_its_own)
    monkeypatch.setattr(step, "run_for_peak", lambda name, which, *about: asked.append((which, (name, *about))))
    monkeypatch.setattr(step, "measure", measure)
    monkeypatch.setattr(step, "report", lambda *_: None)
    options = ["--network", "lenet", "--batch", "3", "--split", "block", "--factor-share", "0.25", "--block-size", "64"]
    monkeypatch.setattr(sys, "argv", ["step.py", *options])
    step.main()
    own = {"precondition": "inverse", "split": "block", "block_size": 64, "factor_share": 0.25}
    assert timed == [("lenet", 3, own)]
    assert asked == [("momentum", timed[0]), ("thor", timed[0])]


def test_the_memory_that_counts_is_the_targets_own(monkeypatch):
    monkeypatch.setattr(step, "own_peak", lambda: 3)
    monkeypatch.setattr(step.ms.runtime, "max_memory_allocated", lambda: 7)
    for target, held in (("CPU", 3), ("GPU", 7), ("Ascend", 7)):
        monkeypatch.setattr(step.thor.device, "current", lambda: target)  # noqa: B023
        assert step.peak_bytes() == held


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--device", "TPU"], "device must be one of CPU, GPU, Ascend or auto, but got 'TPU'"),
        (["--rounds", "0"], "--rounds: must be at least 1, but got 0"),
        (["--batch", "many"], "--batch: must be a whole number, but got 'many'"),
        (["--interval", "100", "-5"], "--interval: must be at least 1, but got -5"),
        (["--precondition", "eigenbasis", "--split", "block"], "--split block: eigenbases are of plain blocks"),
        (["--block-size", "0"], "--block-size: must be at least 1, but got 0"),
        (["--factor-share", "0"], "--factor-share must be finite and greater than 0 and at most 1, but got 0.0"),
        (["--out", "{folder}"], "--out: must be a file to write, but {folder} is a folder"),
        (["--out", "{folder}/file/steps.json"], "--out: the folder of {folder}/file/steps.json cannot be made"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_measured(monkeypatch, tmp_path, capsys, wrong, words):
    (tmp_path / "file").write_text("")
    arguments = [part.format(folder=tmp_path) for part in wrong]
    monkeypatch.setattr(sys, "argv", ["step.py", *arguments])
    with pytest.raises(SystemExit):
        step.main()
    assert words.format(folder=tmp_path) in capsys.readouterr().err


def test_the_folder_of_a_file_to_write_is_made(tmp_path):
    path = file_to_write(str(tmp_path / "a" / "b" / "steps.json"))
    assert path.parent.is_dir() and not path.exists()
