"""Runs whose updates take several steps: what their lines and phases say of each."""

import numpy as np
import pytest

from scripts.run_folder.metrics_recorder import read_metrics
from scripts.training.loop import train
from scripts.training.phase_times import COMPILING
from tests.scripts.training.test_loop import quiet
from tests.support.tiny_runs import tiny_settings

PARTS = {"batch_size": 4, "accumulation": 5, "epochs": 1}  # four updates of five steps


def test_the_last_step_of_an_update_tells_the_mean_loss_of_all_its_steps(tmp_path):
    """Of the first update, whose weights are the same for all optimizers; the others tell each its own loss."""
    losses = []
    for optimizer in ("momentum", "thor"):
        run = train(tiny_settings(tmp_path, optimizer, optimizer, **PARTS), console=quiet())
        lines = [line["loss"] for line in read_metrics(run.folder) if line["kind"] == "step"]
        losses.append(lines[:5])
        (epoch,) = [line for line in read_metrics(run.folder) if line["kind"] == "epoch"]
        assert epoch["train_loss"] == pytest.approx(np.mean(lines[4::5]), rel=1e-5)
    assert len(set(losses[0])) == 5
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.parametrize("optimizer, compiled", [("momentum", 2), ("thor", 4)])
def test_the_step_that_finishes_an_update_compiles_too(tmp_path, optimizer, compiled):
    """THOR: gathering steps and plain ones, the first and the last of an update of each."""
    run = train(tiny_settings(tmp_path, optimizer, **PARTS, thor=THOR), console=quiet())
    phases = run.phases.sums()
    assert phases[COMPILING][0] == compiled
    assert sum(count for name, (count, _) in phases.items() if name in ("step", "plain", "refresh")) == 20


THOR = {"learning_rate": 0.01, "damping": 1.0, "clip": 1.0, "interval": 2, "factor_interval": 2, "block_size": 16}
