"""A run goes on with another number of epochs, and says what its schedules do."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from scripts.run_folder.metrics_recorder import read_metrics
from scripts.run_folder.progress_record import Position
from scripts.settings.yaml_config import load_config, validate
from scripts.training.loop import train
from scripts.training.new_length import describe_change
from scripts.training.schedules import schedule_function
from tests.scripts.training.test_loop import interrupt_at, last_tensors, quiet
from tests.support.tiny_runs import tiny_settings
from thor.runtime.errors import UserError

ADAM_INSIDE = {"inner": "adam", "damping": 0.1, "interval": 4, "factor_interval": 2}


def settings_for(tmp_path, kind, out, epochs, shape):
    """Settings of an optimizer, or of THOR with Adam inside."""
    if kind == "thor with adam":
        return tiny_settings(
            tmp_path,
            "thor",
            out,
            epochs=epochs,
            thor={**ADAM_INSIDE, "schedule": shape, "learning_rate": 0.01},
            adam={},
        )
    own = {"learning_rate": 0.01, "schedule": shape}
    if kind == "muon":
        own |= {"adamw_learning_rate": 0.002}
    if kind == "thor":
        own |= {"damping": 1.0, "clip": 1.0, "interval": 4, "block_size": 16}
    return tiny_settings(tmp_path, kind, out, epochs=epochs, **{kind: own})


@pytest.mark.parametrize(
    "kind",
    [
        "momentum",
        "thor",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("adafactor", "muon", "soap", "thor with adam")),
    ],
)
def test_a_finished_run_with_a_constant_rate_goes_on_as_if_it_had_been_longer(tmp_path, kind):
    whole = train(settings_for(tmp_path, kind, "whole", 2, "constant"), console=quiet())
    train(settings_for(tmp_path, kind, "parts", 1, "constant"), console=quiet())
    console = Console(file=io.StringIO(), width=60)
    run = train(settings_for(tmp_path, kind, "parts", 2, "constant"), resume="auto", console=console)
    assert run.finished and run.position.step == 20
    assert "epochs: 1 -> 2; the learning rate stays constant\n" in console.file.getvalue()
    assert load_config(run.folder / "config.yaml").epochs == 2
    expected, found = last_tensors(whole.folder), last_tensors(run.folder)
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("kind", ["adam", "thor", pytest.param("thor with adam", marks=pytest.mark.slow)])
def test_a_schedule_over_the_run_is_computed_for_the_new_length(tmp_path, monkeypatch, kind):
    train(settings_for(tmp_path, kind, "run", 1, "cosine"), console=quiet())
    settings, console = settings_for(tmp_path, kind, "run", 3, "cosine"), Console(file=io.StringIO(), width=60)
    with monkeypatch.context() as patch:
        interrupt_at(14, patch)
        assert not train(settings, resume=True, console=console).finished
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["finished"], summary["steps"]) == (False, 15)
    words = "the cosine schedule now ends at epoch 3: the learning rate goes from 0.000245 back to 0.0075\n"
    assert f"epochs: 1 -> 3; {words}" in console.file.getvalue()
    own = getattr(settings, settings.optimizer)
    rate = schedule_function(0.01, own.schedule, 3, 10)
    stored = last_tensors(tmp_path / "run")["learning_rate"]
    expected = rate(14) if kind == "thor" else [rate(update) for update in range(30)]
    np.testing.assert_allclose(stored, expected, rtol=1e-6)  # THOR has stored the rate of the last step
    again = Console(file=io.StringIO())
    assert train(settings, resume=True, console=again).finished
    assert "schedule" not in again.file.getvalue()


def test_fewer_epochs_are_taken_if_the_run_has_not_begun_more(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(14, patch)
        train(tiny_settings(tmp_path, "momentum", epochs=5), console=quiet())
    with pytest.raises(UserError, match=r"epochs = 1: must be at least 2, for the run is at step 15, in epoch 2"):
        train(tiny_settings(tmp_path, "momentum", epochs=1), resume=True, console=quiet())
    assert train(tiny_settings(tmp_path, "momentum", epochs=2), resume=True, console=quiet()).position.step == 20


def test_a_run_that_is_cut_to_the_epochs_it_has_is_evaluated_at_its_end(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(21, patch)
        train(tiny_settings(tmp_path, "momentum", epochs=5, eval_every=5, keep=9), console=quiet())
    for path in (tmp_path / "run" / "checkpoints").glob("step-*22.*"):
        path.unlink()
    for _ in range(2):
        run = train(tiny_settings(tmp_path, "momentum", epochs=2, eval_every=5), resume=True, console=quiet())
        assert run.finished and run.position.step == run.position.evaluated == 20
    found = [line["step"] for line in read_metrics(run.folder) if "test_error" in line]
    assert found == [20]


def test_another_setting_is_refused_still(tmp_path):
    train(tiny_settings(tmp_path, "momentum", epochs=1), console=quiet())
    with pytest.raises(UserError, match=r"with other settings: seed: 3 -> 4$"):
        train(tiny_settings(tmp_path, "momentum", epochs=2, seed=4), resume=True, console=quiet())


@pytest.mark.parametrize(
    ("thor", "words"),
    [
        ({"damping": 0.03, "schedule": {"shape": "constant"}}, "the learning rate stays constant"),
        (
            {"damping": 0.03, "schedule": {"shape": "linear", "end_epoch": 1}},
            "the linear schedule still ends at epoch 1: the learning rate goes from 0.005 to 0",
        ),
        (
            {"damping": 0.03, "schedule": {"shape": "linear", "end_update": 40}},
            "the linear schedule still ends at update 40: the learning rate goes from 0.0388 to 0.0375",
        ),
        (
            {"damping": 0.03, "schedule": "constant", "damping_schedule": {"shape": "linear", "final": 0.5}},
            "the learning rate stays constant; the linear schedule now ends at epoch 2: the damping goes from 0.0165 "
            "back to 0.0225",
        ),
    ],
)
def test_what_is_said_of_the_schedules(thor, words):
    old, new = (validate({"epochs": epochs, "thor": thor, "accumulation": 2}) for epochs in (1, 2))
    found = describe_change(old, new, Position(step=20, epoch=1), 20)
    assert found == f"epochs: 1 -> 2; {words}"
    assert describe_change(new, new, Position(step=20, epoch=1), 20) is None
    assert describe_change(new, old, Position(step=20, epoch=1), 20) == "epochs: 2 -> 1; nothing is left to train"
