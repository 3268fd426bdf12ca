import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from rich.console import Console

from first_order.compiled import CompiledFunction
from scripts.run_folder.checkpoints import CHECKPOINT_SUFFIXES
from scripts.run_folder.folder_lock import folder_lock
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.settings.yaml_config import load_config, save_config
from scripts.train import main as program
from scripts.training.loop import train
from scripts.training.progress_display import ProgressDisplay
from scripts.training.run import CHECKPOINTS, due
from tests.support.paths import ROOT
from tests.support.tiny_runs import tiny_settings, write_set
from tests.support.waiting import wait_until
from thor.runtime.errors import UserError


def quiet() -> Console:
    return Console(file=io.StringIO())


def last_tensors(folder: Path) -> dict[str, np.ndarray]:
    path = max((folder / CHECKPOINTS).glob("*.ckpt"))
    return {name: value.asnumpy() for name, value in ms.load_checkpoint(str(path)).items()}


def without_times(folder: Path) -> list[dict]:
    times = ("seconds", "compiling", "ms_per_step")
    return [{k: v for k, v in line.items() if k not in times} for line in read_metrics(folder)]


def interrupt_at(step: int, monkeypatch) -> None:
    """Ctrl-C while that step is under way."""
    show = ProgressDisplay.step

    def press(self, number, *rest):
        if number == step:
            signal.raise_signal(signal.SIGINT)
        show(self, number, *rest)

    monkeypatch.setattr(ProgressDisplay, "step", press)


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adafactor", "muon", "soap"])
def test_training_learns_and_leaves_its_files(tmp_path, optimizer):
    settings = tiny_settings(tmp_path, optimizer)
    run = train(settings, console=quiet())
    summary = json.loads((run.folder / "summary.json").read_text())
    assert run.finished and summary["finished"] and summary["steps"] == 20
    losses = [line["loss"] for line in read_metrics(run.folder) if line["kind"] == "step"]
    assert len(losses) == 20 and losses[-1] < 0.9 * losses[0]
    assert len(summary["epochs"]) == 2 and summary["epochs"][-1]["test_error"] > 0
    assert sorted(path.name for path in (run.folder / CHECKPOINTS).iterdir()) == sorted(
        f"{name}{suffix}" for name in ("best", "step-00000010", "step-00000020") for suffix in CHECKPOINT_SUFFIXES
    )


def test_accuracy_of_a_classifier(tmp_path):
    settings = tiny_settings(
        tmp_path, "adam", network="lenet5", network_options={}, loss="cross_entropy", label_smoothing=0.1, epochs=4
    )
    summary = json.loads((train(settings, console=quiet()).folder / "summary.json").read_text())
    assert summary["epochs"][-1]["test_accuracy"] > 0.2


def test_accumulation_equals_the_larger_batch(tmp_path):
    whole = train(tiny_settings(tmp_path, "momentum", "whole", epochs=1), console=quiet())
    parts = train(tiny_settings(tmp_path, "momentum", "parts", epochs=1, batch_size=4, accumulation=2), console=quiet())
    expected, found = last_tensors(whole.folder), last_tensors(parts.folder)
    for name in ("encoder.0.weight", "decoder.0.bias"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("every", "accumulation", "expected"),
    [
        (3, 1, [3, 6, 9, 12]),
        (3, 2, [4, 6, 10, 12]),
        (4, 3, [6, 9, 12]),
        (1, 6, [6, 12]),
        (12, 4, [12]),
        (13, 2, []),
        (0, 2, []),
    ],
)
def test_what_comes_every_some_steps_comes_at_the_end_of_an_update(every, accumulation, expected):
    ends = range(accumulation, 13, accumulation)
    assert [step for step in ends if due(step, every, accumulation)] == expected


def test_loss_scale_changes_nothing(tmp_path):
    plain = train(tiny_settings(tmp_path, "momentum", "plain", epochs=1), console=quiet())
    scaled = train(tiny_settings(tmp_path, "momentum", "scaled", epochs=1, loss_scale=1024.0), console=quiet())
    expected, found = last_tensors(plain.folder), last_tensors(scaled.folder)
    np.testing.assert_allclose(found["encoder.0.weight"], expected["encoder.0.weight"], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum", "thor"])
def test_resume_equals_an_undisturbed_run_bit_for_bit(tmp_path, monkeypatch, optimizer):
    undisturbed = train(tiny_settings(tmp_path, optimizer, "undisturbed"), console=quiet())
    settings = tiny_settings(tmp_path, optimizer, "disturbed")
    with monkeypatch.context() as patch:
        interrupt_at(7, patch)
        assert not train(settings, console=quiet()).finished
    summary = json.loads((Path(settings.out) / "summary.json").read_text())
    assert summary["finished"] is False and summary["steps"] == 8 and summary["seconds"] > 0
    resumed = train(settings, resume=True, console=quiet())
    assert resumed.finished
    expected, found = last_tensors(undisturbed.folder), last_tensors(resumed.folder)
    assert expected.keys() == found.keys()
    for name in expected:
        assert np.array_equal(expected[name], found[name]), name
    assert without_times(resumed.folder) == without_times(undisturbed.folder)


def test_no_checkpoint_of_an_earlier_run_is_removed_unasked(tmp_path):
    settings = tiny_settings(tmp_path, "momentum", epochs=1)
    folder = train(settings, console=quiet()).folder
    first = last_tensors(folder)
    other = tiny_settings(tmp_path, "momentum", epochs=1, seed=9)
    refused = "run holds a run at step 10: go on with --resume, begin anew with --overwrite, or choose another --out"
    with pytest.raises(UserError, match=refused):
        train(other, console=quiet())
    assert all(np.array_equal(first[name], value) for name, value in last_tensors(folder).items())
    train(other, console=quiet(), overwrite=True)
    assert not np.array_equal(first["encoder.0.weight"], last_tensors(folder)["encoder.0.weight"])


@pytest.mark.parametrize("resume", [False, "auto"])
def test_a_best_checkpoint_that_is_left_alone_is_not_removed_unasked(tmp_path, resume):
    """Somebody has removed the others to make room."""
    settings = tiny_settings(tmp_path, "momentum", epochs=1)
    folder = train(settings, console=quiet()).folder / "checkpoints"
    for path in folder.glob("step-*"):
        path.unlink()
    with pytest.raises(UserError, match=r"best.ckpt is the only checkpoint there; .* or begin anew with --overwrite"):
        train(settings, console=quiet(), resume=resume)
    assert (folder / "best.ckpt").is_file()
    train(settings, console=quiet(), overwrite=True)
    assert list(folder.glob("step-*"))


def test_overwrite_is_a_flag_and_not_together_with_resume(tmp_path, capsys):
    save_config(tiny_settings(tmp_path, "momentum", epochs=1), tmp_path / "config.yaml")
    command = ["--config", str(tmp_path / "config.yaml"), "--overwrite"]
    assert program(command) == program(command) == 0
    with pytest.raises(SystemExit):
        program([*command, "--resume"])
    assert "--resume: not allowed with argument --overwrite" in capsys.readouterr().err


def test_resume_says_what_is_missing_or_differs(tmp_path):
    settings = tiny_settings(tmp_path, "momentum", epochs=1)
    folder = Path(settings.out)
    with pytest.raises(UserError, match=r"nothing to resume: .*config\.yaml is missing"):
        train(settings, resume=True, console=quiet())
    save_config(settings, folder / "config.yaml")
    with pytest.raises(UserError, match="nothing to resume: .* has no checkpoint"):
        train(settings, resume=True, console=quiet())
    with pytest.raises(UserError, match="with other settings: batch_size: 8 -> 16; seed: 3 -> 9"):
        train(tiny_settings(tmp_path, "momentum", epochs=1, seed=9, batch_size=16), resume=True, console=quiet())
    train(settings, console=quiet())
    newest = max((folder / CHECKPOINTS).glob("*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:-10])
    with pytest.raises(UserError, match="bytes, and should have"):
        train(settings, resume=True, console=quiet())


@pytest.mark.parametrize("optimizer", ["thor", "momentum"])
def test_a_run_does_not_go_on_with_fewer_examples(tmp_path, monkeypatch, optimizer):
    """Its schedules, over epochs, would jump."""
    settings = tiny_settings(tmp_path, optimizer, epochs=3)
    interrupt_at(3, monkeypatch)
    train(settings, console=quiet())
    data = settings.data.model_copy(update={"folder": str(write_set(tmp_path / "copied in part", train=32))})
    with pytest.raises(UserError, match=r"an epoch of this run has 10 steps, and would have 4 .*data\.folder"):
        train(settings.model_copy(update={"data": data}), resume=True, console=quiet())


def test_a_continued_run_is_told_of_as_it_went_on(tmp_path):
    """What evaluation, export and the next --resume read is where the data are now."""
    settings = tiny_settings(tmp_path, "momentum", epochs=1)
    train(settings, console=quiet())
    moved = (tmp_path / "data").rename(tmp_path / "moved")
    data = settings.data.model_copy(update={"folder": str(moved)})
    run = train(settings.model_copy(update={"data": data}), resume=True, console=quiet())
    assert load_config(run.folder / "config.yaml").data.folder == str(moved)


def test_no_checkpoint_is_looked_for_while_another_process_trains(tmp_path):
    settings = tiny_settings(tmp_path, "momentum")
    with folder_lock(Path(settings.out), True), pytest.raises(UserError, match="another process is training"):
        train(settings, resume=True, console=quiet())


def test_a_kill_before_the_last_rename_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    settings = tiny_settings(tmp_path, "momentum")
    replace = os.replace

    def killed(source, target):
        if str(target).endswith("step-00000020.json"):
            raise OSError("killed")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(UserError, match="cannot be written .killed.: .* that of step 10 is whole"):
            train(settings, console=quiet())
    run = train(settings, resume=True, console=quiet())
    assert run.finished and run.position.step == 20
    assert [line["step"] for line in read_metrics(run.folder) if line["kind"] == "step"] == list(range(1, 21))


@pytest.mark.parametrize("optimizer", ["momentum", "thor"])
def test_pynative_compiles_no_network(tmp_path, monkeypatch, optimizer):
    """The update of a first-order optimizer is compiled all the same: no debugger has to look into that."""
    own, found = CompiledFunction.__init__, set()

    def compiling(self, function, *parameters):
        found.add(function.__module__)
        own(self, function, *parameters)

    monkeypatch.setattr(CompiledFunction, "__init__", compiling)
    try:
        run = train(tiny_settings(tmp_path, optimizer, epochs=1, mode="pynative"), console=quiet())
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    losses = [line["loss"] for line in read_metrics(run.folder) if line["kind"] == "step"]
    assert losses[-1] < losses[0]
    assert not found & {"thor.step.graphs", "thor.train_step", "scripts.training.evaluation"}


def test_a_diverging_run_ends_with_one_line(tmp_path):
    settings = tiny_settings(tmp_path, "momentum", momentum={"learning_rate": 1e20})
    with pytest.raises(UserError, match=r"momentum, after step \d+: 10 steps in a row were not finite"):
        train(settings, console=quiet())


def test_too_few_images_for_a_batch(tmp_path):
    with pytest.raises(UserError, match="batch_size = 100 with accumulation = 1"):
        train(tiny_settings(tmp_path, "momentum", batch_size=100), console=quiet())


def test_unknown_networks(tmp_path):
    for name, message in (("resnet", "must be one of"), ("models.lenet:lenet6", "lenet6"), ("nowhere:net", "nowhere")):
        with pytest.raises(UserError, match=message):
            train(tiny_settings(tmp_path, "momentum", network=name), console=quiet())


def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tmp_path):
    settings = tiny_settings(tmp_path, "momentum", epochs=10_000)
    save_config(settings, tmp_path / "config.yaml")
    command = [sys.executable, "scripts/train.py", "--config", str(tmp_path / "config.yaml")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: read_metrics(Path(settings.out)) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"python scripts/train.py --config {settings.out}/config.yaml --resume" in output
    assert "Traceback" not in errors
    assert list((Path(settings.out) / CHECKPOINTS).glob("*.json"))
