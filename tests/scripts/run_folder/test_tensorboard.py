"""TensorBoard's event files: what they hide of an earlier run, and that their library may be missing."""

import re

import pytest

from scripts.run_folder.metrics_recorder import read_metrics
from scripts.training.loop import train
from tests.scripts.training.test_loop import interrupt_at, quiet
from tests.support.tiny_runs import tiny_settings
from thor.runtime.errors import UserError


def sessions(folder):
    """The steps from which on a run's event files hide earlier points; records are length, sum, event, sum."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            end = 12 + int.from_bytes(data[:8], "little")
            event, data = Event.FromString(data[12:end]), data[end + 4 :]
            if event.session_log.status == SessionLog.START:
                found.append(event.step)
    return found


def earlier(folder):
    """Event files are named by the second that they are begun in: these are of one before."""
    for path in sorted((folder / "tensorboard").iterdir()):
        name, second, rest = re.fullmatch(r"(.*tfevents\.)(\d+)(\..*)", path.name).groups()
        path.rename(path.with_name(f"{name}{int(second) - 1000}{rest}"))


def test_it_hides_what_a_run_writes_again(tmp_path, monkeypatch):
    settings = tiny_settings(tmp_path, "momentum", tensorboard=True, epochs=1)
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(7, patch)
        train(settings, console=quiet())
    assert sessions(folder) == [0]
    earlier(folder)
    train(settings, resume=True, console=quiet())
    assert sessions(folder) == [0, 9], "seen in step 8"
    earlier(folder)
    train(settings, overwrite=True, console=quiet())
    assert sessions(folder) == [0, 9, 0], "or two runs are one curve"


def test_without_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    settings = tiny_settings(tmp_path, "momentum", epochs=1)
    run = train(settings, console=quiet())
    before = sorted(path for path in run.folder.rglob("*") if path.is_file())
    board = settings.model_copy(update={"tensorboard": True})
    with pytest.raises(UserError, match="tensorboard = true needs tensorboardX: pip install tensorboardX"):
        train(board, console=quiet(), overwrite=True)
    assert sorted(path for path in run.folder.rglob("*") if path.is_file()) == before, "nothing is removed for it"
    assert read_metrics(run.folder)
