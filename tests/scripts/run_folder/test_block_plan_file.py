"""What ``block_size: auto`` has chosen stays with the run, whatever becomes of the cache of measurements."""

import shutil

import numpy as np
import pytest

from scripts.run_folder import block_plan_file
from scripts.training.loop import train
from tests.scripts.training.test_loop import interrupt_at, last_tensors, quiet
from tests.support.tiny_runs import tiny_settings
from thor.runtime.errors import UserError


def settings_of(folder, out):
    own = {"learning_rate": 0.01, "damping": 1.0, "clip": 1.0, "interval": 4, "block_size": "auto"}
    return tiny_settings(folder, "thor", out, thor=own)


def test_a_run_goes_on_with_its_blocks_without_the_cache(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("THOR_CACHE_DIR", str(cache))
    whole = train(settings_of(tmp_path, "whole"), console=quiet())
    with monkeypatch.context() as patch:
        interrupt_at(13, patch)
        assert not train(settings_of(tmp_path, "parts"), console=quiet()).finished
    shutil.rmtree(cache)
    run = train(settings_of(tmp_path, "parts"), resume=True, console=quiet())
    assert run.finished and not cache.exists(), "nothing was measured anew"
    expected, found = last_tensors(whole.folder), last_tensors(run.folder)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    with pytest.raises(UserError, match="cannot be written"):
        block_plan_file.save_block_plan(tmp_path / "nowhere", run.stepper.optimizer)
    (run.folder / block_plan_file.BLOCK_PLAN).write_text('{"block_size": 0}')
    with pytest.raises(UserError, match=r"blocks\.json: does not hold the blocks of a run"):
        train(settings_of(tmp_path, "parts"), resume=True, console=quiet())
