"""What the launcher shows of a rank's log, and what it says of wrong arguments before anything is started."""

import io
import re

import pytest

from scripts.cluster import launch
from scripts.cluster.msrun import Job
from scripts.cluster.shown_log import ShownLog
from scripts.cluster.watch import Attempt, Limits
from tests.support.paths import ROOT
from thor.runtime.errors import UserError

FAULTY = ROOT / "tests" / "scripts" / "cluster" / "faulty.py"
INFO = b"[INFO] DISTRIBUTED(1486,7ff4,python):2026-11-28 [mindspore/ccsrc/cluster/tcp.cc:367] Start] success!\n"


@pytest.fixture
def nothing_starts(monkeypatch):
    monkeypatch.setattr(Attempt, "__call__", lambda self: pytest.fail("a job was started"))


def shown(parts, reported=""):
    output = io.StringIO()
    log = ShownLog(output)
    for part in parts:
        log.add(part)
    log.end(reported)
    return output.getvalue()


def test_lines_are_shown_whole_and_without_those_of_mindspore():
    parts = [b"epoch 1\n" + INFO[:30], INFO[30:] + "half a \u00e9".encode()[:-1], "\u00e9".encode()[-1:] + b"\nthe end"]
    assert shown(parts) == "epoch 1\nhalf a \u00e9\nthe end"


def test_an_error_that_the_launcher_reports_is_not_shown_twice():
    log = [b"epoch 1\nerror: seed = -1: bad\n", b"       epochs = 0: bad\n" + INFO]
    assert shown(log, "rank 0: seed = -1: bad; epochs = 0: bad [log]") == "epoch 1\n"
    assert shown(log, "rank 1: killed") == "epoch 1\nerror: seed = -1: bad\n       epochs = 0: bad\n"


def test_ranks_with_the_same_error_are_counted(tmp_path):
    attempt = Attempt(Job(script=FAULTY, arguments=(), log_dir=tmp_path, devices=3, port=8118), Limits(), lambda: 0)
    for rank in range(3):
        (tmp_path / f"worker_{rank}.log").write_text("error: epochs = 0: bad\n")
        attempt._seen.statuses[rank], attempt._seen.states[rank] = 2, "gone"
    outcome = attempt._verdict(None, 0.0, 1.0, False)
    assert outcome.status == 2
    assert "epochs = 0: bad (and 2 other ranks with the same error) [" in outcome.message


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (["--devices", "2", "--config", "a b.yaml"], "launch.py --devices 2 -- --config 'a b.yaml'"),
        (["--devices", "2", "--config=X", "--", "--epochs", "3"], "launch.py --devices 2 -- --config=X --epochs 3"),
    ],
)
def test_an_option_of_the_program_names_the_separator(arguments, cure, nothing_starts):
    with pytest.raises(UserError) as caught:
        launch.main(arguments)
    assert str(caught.value).startswith("No such option: --config")
    assert str(caught.value).endswith(f"If it is for the program, put it behind  -- , as in:  {cure}")


def test_other_errors_in_options_are_told_as_ever(capsys, nothing_starts):
    assert launch.main(["--devices", "two", "--", "x"]) == 2
    assert "--devices" in capsys.readouterr().err
    assert launch.main(["--help"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "--config", "none.yaml"], "--config none.yaml: no such file; paths are relative to "),
        (["--", "--config=none.yaml", "--resume"], "--config none.yaml: no such file"),
        (["--script", "none.py", "--", "--config", "none.yaml"], "none.py: no such program"),
    ],
)
def test_files_are_looked_for_before_anything_is_started(tmp_path, monkeypatch, arguments, message, nothing_starts):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(message)):
        launch.main(["--devices", "2", *arguments])
    assert not list(tmp_path.iterdir())
