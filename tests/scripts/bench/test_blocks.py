"""The comparison of block sizes: what is measured is kept, whatever comes after it."""

import dataclasses
import json
import sys

import numpy as np
import pytest
from mindspore import nn

from scripts.bench import blocks


def test_a_run_that_breaks_is_recorded_and_an_interrupt_costs_only_the_run_under_way(tmp_path, monkeypatch):
    def step_of(name):
        """Adam runs; whole factors break in the second epoch, Momentum at once; then the user has had enough."""
        steps = []

        def step(*batch):
            steps.append(batch)
            if name == "momentum":  # which skips what is not finite, and goes on
                return nn.MSELoss()(*batch) * np.nan
            if name == "full" and len(steps) > 4:
                raise FloatingPointError("ten bad steps")
            if name == "block 32":
                raise KeyboardInterrupt
            return nn.MSELoss()(*batch)

        return step

    class Run:
        def __init__(self, name, work, seed):
            self.net, self.refresh_seconds, self.step = nn.Dense(3, 3), [], step_of(name)

    data = [np.ones((8, 3), np.float32)] * 4
    monkeypatch.setattr(blocks, "Run", Run)
    monkeypatch.setattr(blocks, "load", lambda task: data)
    work = dataclasses.replace(blocks.TASKS["autoencoder"], loss=nn.MSELoss(), batch=2)
    monkeypatch.setitem(blocks.TASKS, "autoencoder", work)
    arguments = ["--epochs", "2", "--runs", "adam", "full", "momentum", "block 32", "--out", str(tmp_path / "new")]
    monkeypatch.setattr(sys, "argv", ["blocks.py", *arguments])
    with pytest.raises(KeyboardInterrupt):
        blocks.main()
    results = json.loads((tmp_path / "new" / "autoencoder.json").read_text())["results"]
    assert {name: len(result["curve"]) for name, result in results.items()} == {"adam": 2, "full": 1, "momentum": 0}
    assert results["full"]["broken"] == "ten bad steps" and "broken" not in results["adam"]
    assert "the loss nan" in results["momentum"]["broken"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--epochs", "0"], "--epochs: must be at least 1, but got 0"),
        (["--seed", "-1"], "--seed: must be 0 to 4294967295, but got -1"),
        (["--seed", "one"], "--seed: must be a whole number, but got 'one'"),
    ],
)
def test_a_wrong_argument_is_refused_and_leaves_an_earlier_result_alone(tmp_path, monkeypatch, capsys, wrong, words):
    (tmp_path / "autoencoder.json").write_text("earlier")
    monkeypatch.setattr(blocks, "load", lambda task: [np.ones((0, 3), np.float32)] * 4)
    monkeypatch.setattr(sys, "argv", ["blocks.py", "--runs", "adam", "--out", str(tmp_path), *wrong])
    with pytest.raises(SystemExit):
        blocks.main()
    assert words in capsys.readouterr().err
    assert (tmp_path / "autoencoder.json").read_text() == "earlier"
