"""A full disk ends a run with one line that says what to do; the checkpoint before is whole, and nothing is lost."""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from scripts.common.errors import USAGE_ERROR
from scripts.run_folder import checkpoints
from scripts.run_folder.metrics_recorder import Recorder, read_metrics
from scripts.settings.yaml_config import save_config
from scripts.training.loop import train
from scripts.training.run import CHECKPOINTS
from tests.fuzz import checkpoints as fuzz_checkpoints
from tests.scripts.training.test_loop import last_tensors, quiet, without_times
from tests.support.paths import ROOT
from tests.support.tiny_runs import tiny_settings
from thor.runtime.errors import UserError

pytestmark = [pytest.mark.slow, pytest.mark.jobs]

# Trains; as soon as a step is done, no file may grow beyond some bytes.
LIMITED = """
import os, resource, sys
sys.path.insert(0, os.getcwd())
import scripts.train
from scripts.common import errors
from scripts.training import progress_display as progress
step, size, config = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
show = progress.ProgressDisplay.step

def limited(self, number, *rest):
    if number == step:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    show(self, number, *rest)

progress.ProgressDisplay.step = limited
errors.run_program(lambda: scripts.train.main(["--config", config, "--resume", "auto"]))
"""


def disk_full(*_arguments, **_options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_after(count, monkeypatch):
    """Every write of a checkpoint, in order, but those after `count` find the disk full; how many there were."""
    done = [0]

    def limit(owner, name):
        own = getattr(owner, name)

        def function(*arguments, **options):
            done[0] += 1
            return disk_full() if done[0] > count else own(*arguments, **options)

        monkeypatch.setattr(owner, name, function)

    for owner, name in (
        (ms, "save_checkpoint"),
        (os, "replace"),
        (os, "link"),
        (shutil, "copyfile"),
        (Path, "write_text"),
    ):
        limit(owner, name)
    return done


def test_a_full_disk_at_each_moment_of_saving_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    for count in range(20):
        folder = tmp_path / str(count)
        net = fuzz_checkpoints.network(3)
        checkpoints.save(folder, checkpoints.collect_tensors((net,)), fuzz_checkpoints.position(3), keep=1)
        with monkeypatch.context() as patch:
            full_after(count, patch)
            tensors = checkpoints.collect_tensors((fuzz_checkpoints.network(7),))
            try:
                checkpoints.save(folder, tensors, fuzz_checkpoints.position(7), keep=1)
                break
            except UserError as error:
                said = str(error)
        assert f"{folder}: cannot be written (No space left on device)" in said
        assert "the checkpoint of step 7 is not saved; that of step 3 is whole" in said and "--resume" in said
        assert not list(folder.glob("writing.*")), "takes room that the disk lacks"
        found, where = fuzz_checkpoints.resume(folder)
        assert where == fuzz_checkpoints.position(3)
        assert np.array_equal(found[0].weight.asnumpy(), net[0].weight.asnumpy())
        best, _ = fuzz_checkpoints.evaluate(folder)  # of either step, and whole
        assert float(best[0].weight.asnumpy().mean()) in (3.0, 7.0)
        checkpoints.save(folder, tensors, fuzz_checkpoints.position(7), keep=1)
        fuzz_checkpoints.is_the_newest(folder, fuzz_checkpoints.resume(folder))
        fuzz_checkpoints.is_the_newest(folder, fuzz_checkpoints.evaluate(folder))
    assert count == 8, "tensors and name; link, and name of the best; two descriptions, each with its name"


def test_a_full_disk_when_an_evaluation_is_added_keeps_the_checkpoint_as_it_was(tmp_path, monkeypatch):
    found = fuzz_checkpoints.position(7)
    before = replace(found, best=0.75, best_step=3)
    for count in range(20):
        folder = tmp_path / str(count)
        checkpoints.save(
            folder, checkpoints.collect_tensors((fuzz_checkpoints.network(3),)), fuzz_checkpoints.position(3), keep=2
        )
        checkpoints.save(folder, checkpoints.collect_tensors((fuzz_checkpoints.network(7),)), before, keep=2)
        with monkeypatch.context() as patch:
            full_after(count, patch)
            try:
                checkpoints.update_description(folder, found)
                break
            except UserError as error:
                said = str(error)
        assert "what came after step 7 is not saved; its checkpoint is whole, and --resume goes on from it" in said
        assert not list(folder.glob("writing.*")), "takes room that the disk lacks"
        assert fuzz_checkpoints.resume(folder)[1] == before
        best, _ = fuzz_checkpoints.evaluate(folder)  # of either step, and whole
        assert float(best[0].weight.asnumpy().mean()) in (3.0, 7.0)
        checkpoints.update_description(folder, found)
        fuzz_checkpoints.is_the_newest(folder, fuzz_checkpoints.resume(folder))
        fuzz_checkpoints.is_the_newest(folder, fuzz_checkpoints.evaluate(folder))
    assert count == 6, "link, and name of the best; two descriptions, each with its name"


def test_a_disk_that_is_really_full_and_then_is_not(tmp_path):
    def settings(out):
        return tiny_settings(tmp_path, "momentum", out, checkpoint_every=3, eval_every_steps=4)

    undisturbed, full = settings("undisturbed"), settings("full")
    train(undisturbed, console=quiet())
    save_config(full, tmp_path / "config.yaml")
    # after step 7: tensors do not fit; after step 14: metrics.jsonl itself does not
    for step, size in ((7, 20_000), (14, 1_500)):
        command = [sys.executable, "-c", LIMITED, str(step), str(size), str(tmp_path / "config.yaml")]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert ended.returncode == USAGE_ERROR, ended.stderr
        assert "Traceback" not in ended.stderr
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        assert "cannot be written (File too large)" in line and "--resume" in line and full.out in line
    resumed = train(full, resume="auto", console=quiet())
    expected, found = last_tensors(Path(undisturbed.out)), last_tensors(Path(full.out))
    assert expected.keys() == found.keys()
    assert not [name for name in expected if not np.array_equal(expected[name], found[name])]
    assert without_times(resumed.folder) == without_times(Path(undisturbed.out))


def test_lines_that_do_not_fit_are_a_clear_error(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    recorder = Recorder(tmp_path)
    recorder.step(step=1, epoch=0.1, loss=2.0, ms_per_step=1.0, seconds=0.1)
    recorder.flush()
    recorder._file.close()
    recorder._file = open("/dev/full", "a")
    recorder.step(step=2, epoch=0.2, loss=2.0, ms_per_step=1.0, seconds=0.2)
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written \(No space left on device\): .*--resume"):
        recorder.flush()
    with pytest.raises(UserError, match="No space left"):
        recorder.close()
    assert recorder._file.closed and all(table.file.closed for table in recorder._tables)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]


def test_a_damaged_checkpoint_is_refused_by_auto_and_the_one_before_goes_on(tmp_path):
    settings = tiny_settings(tmp_path, "momentum")
    expected = last_tensors(train(settings, console=quiet()).folder)
    newest = max((Path(settings.out) / CHECKPOINTS).glob("step-*.ckpt"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.unlink()
    newest.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"step-00000020\.ckpt: damaged .*remove it to use the checkpoint before"):
        train(settings, resume="auto", console=quiet())
    newest.unlink()
    found = last_tensors(train(settings, resume="auto", console=quiet()).folder)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
