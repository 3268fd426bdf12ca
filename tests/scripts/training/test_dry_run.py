"""``--dry-run`` tells what a run would be, and what is missing for it here."""

import io

import pytest
from mindspore import nn
from rich.console import Console

from scripts.run_folder.write_check import why_not_writable
from scripts.settings.yaml_config import save_config, validate
from scripts.train import main as program
from scripts.training import dry_run
from scripts.training.loop import train
from tests.scripts.training.test_loop import quiet
from tests.support.tiny_runs import tiny_settings
from thor.runtime.errors import UserError


@pytest.mark.parametrize("optimizer", ["thor", "adam"])
def test_dry_run_tells_and_leaves_nothing(tmp_path, optimizer):
    console = Console(file=io.StringIO(), width=160)
    settings = tiny_settings(tmp_path, optimizer)
    plan = dry_run.show(settings, console)
    text = console.file.getvalue()
    assert plan.steps_per_epoch == 10 and not plan.notes
    assert "encoder.0" in text and "steps: 10 an epoch, 20 in 2 epochs" in text
    assert ("785=49x16" in text) == (optimizer == "thor")
    assert f"{settings.out}/checkpoints" in text.replace("\n", "")
    assert not (tmp_path / "run").exists()


def test_dry_run_counts_what_is_captured(tmp_path):
    console = Console(file=io.StringIO(), width=160)
    dry_run.show(tiny_settings(tmp_path, "thor"), console)
    assert "captured: 4 dense" in console.file.getvalue().splitlines()


def test_dry_run_keeps_numbers_whole_on_a_narrow_terminal(tmp_path):
    console = Console(file=io.StringIO(), width=60)
    dry_run.show(tiny_settings(tmp_path, "thor"), console)
    text = console.file.getvalue()
    assert "785=49x16" in text and "12,560" in text and "…" not in text


def test_dry_run_begins_with_the_main_settings(tmp_path):
    console = Console(file=io.StringIO(), width=160)
    settings = tiny_settings(tmp_path, "adam", adam={"learning_rate": 0.01, "schedule": {"warmup_epochs": 0.5}})
    dry_run.show(settings, console)
    assert console.file.getvalue().splitlines()[:7] == [
        "network:   autoencoder, widths = [784, 16, 8]",
        "optimizer: adam",
        "rate:      0.01, cosine to 0 at epoch 2, after 0.5 epochs of warm-up",
        f"data:      fashion_mnist, in {tmp_path / 'data'}",
        "training:  batch 8, 2 epochs, seed 3",
        "device:    CPU, graph mode, amp O0",
        f"out:       {settings.out}",
    ]


@pytest.mark.parametrize("out", ["{file}", "{file}/run", "/proc/none/run"])
def test_dry_run_looks_whether_the_folder_can_be_written(tmp_path, out):
    (tmp_path / "file").touch()
    console = Console(file=io.StringIO(), width=160)
    out = out.format(file=tmp_path / "file")
    plan = dry_run.show(tiny_settings(tmp_path, "adam").model_copy(update={"out": out}), console)
    assert len(plan.notes) == 1
    assert f"MISSING HERE: out = {out}: the folder cannot be made or written (N" in console.file.getvalue()


def test_a_look_at_a_folder_leaves_nothing(tmp_path):
    assert why_not_writable(tmp_path / "a" / "b" / "c") is None
    assert why_not_writable(tmp_path) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", [False, True])
def test_the_status_of_dry_run_is_2_if_something_is_missing(tmp_path, missing, capsys):
    settings = tiny_settings(tmp_path, "adam")
    save_config(settings, tmp_path / "c.yaml")
    own = ["--data.folder", str(tmp_path / "nowhere")] if missing else []
    assert program(["--config", str(tmp_path / "c.yaml"), "--dry-run", *own]) == (2 if missing else 0)
    assert ("MISSING HERE" in capsys.readouterr().out) == missing


def test_dry_run_tells_of_a_run_that_is_there(tmp_path):
    console = Console(file=io.StringIO(), width=160)
    train(tiny_settings(tmp_path, "momentum", epochs=1), console=quiet())
    dry_run.show(tiny_settings(tmp_path, "momentum", epochs=3, seed=4), console)
    assert "holds a run at step 10: go on with --resume, begin anew with --overwrite" in console.file.getvalue()
    assert "(--resume needs its settings: seed: 3 -> 4)" in console.file.getvalue()


def test_dry_run_without_the_data_counts_published_ones(tmp_path):
    console = Console(file=io.StringIO(), width=160)
    settings = tiny_settings(tmp_path, "adam", data={"folder": str(tmp_path / "nowhere")}, batch_size=100)
    assert dry_run.show(settings, console).steps_per_epoch == 600
    assert "MISSING HERE: the data: " in console.file.getvalue()
    part = {"folder": str(tmp_path / "nowhere"), "train_size": 6000}
    assert dry_run.show(tiny_settings(tmp_path, "adam", data=part, batch_size=100), quiet()).steps_per_epoch == 60


@pytest.mark.parametrize("optimizer", ["thor", "momentum"])
def test_dry_run_of_a_job_of_several_ranks_needs_no_job(tmp_path, optimizer):
    console = Console(file=io.StringIO(), width=160)
    data = {"folder": str(tmp_path / "data"), "ranks": 4}
    dry_run.show(tiny_settings(tmp_path, optimizer, data=data), console)
    assert "batch 8 (2 on each of 4 ranks)" in console.file.getvalue()


@pytest.mark.parametrize(
    "own, words", [({"grad_worker_fraction": 0.75}, "0.75 of 4 ranks is 3"), ({"block_size": "auto"}, "thor profile")]
)
def test_dry_run_of_a_job_refuses_what_the_job_will_refuse(tmp_path, own, words):
    data = {"folder": str(tmp_path / "data"), "ranks": 4}
    with pytest.raises(UserError, match=words):
        dry_run.show(tiny_settings(tmp_path, "thor", data=data, thor=own), quiet())


def test_dry_run_without_a_text_counts_on_the_vocabulary_that_is_asked_for(tmp_path):
    console = Console(file=io.StringIO(), width=160)
    data = {"name": "text", "objective": "next", "folder": str(tmp_path / "none"), "vocabulary": 300, "length": 16}
    settings = {"network": "tests.scripts.training.test_dry_run:word_pairs", "optimizer": "adam", "data": data}
    plan = dry_run.show(validate(settings), console)
    assert plan.network.weight.shape == (300, 8)
    assert "MISSING HERE: the data: " in console.file.getvalue()
    with pytest.raises(UserError, match=r"word_pairs.*'size'(.|\n)*MISSING HERE: the data: "):
        dry_run.show(validate({**settings, "network_options": {"size": 1}}), console)


def word_pairs(vocab_size):
    net = nn.Dense(8, vocab_size)
    net.predicts_next = True
    return net
