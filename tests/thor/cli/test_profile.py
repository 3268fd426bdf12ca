"""The command line: one clear line for what the user can mend, exit code 2; 130 for an interrupt."""

import gc
import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest
from typer.testing import CliRunner

from tests.support.paths import ROOT
from tests.support.profiles import profile as plain_profile
from thor.cli import app, network_argument, profile, terminal
from thor.profile import gather, timing
from thor.profile.profile_file import Profile
from thor.runtime.errors import UserError

MODULE = """
import weakref
import numpy as np
from mindspore import nn

def build(num_classes=3):
    return nn.SequentialCell(nn.Dense(6, 5), nn.ReLU(), nn.Dense(5, num_classes))

def autoencoder():
    return nn.SequentialCell(nn.Dense(6, 2), nn.Dense(2, 6))

def batches():
    for seed in range(2):
        rng = np.random.default_rng(seed)
        yield rng.standard_normal((8, 6)).astype(np.float32), np.arange(8, dtype=np.int32) % 3

def mobile():
    import mindcv.models.mobilenetv2  # after which the interpreter ends its modules in another order
    return build()

class Counted(nn.SequentialCell):
    made, alive = 0, weakref.WeakSet()

def counted(num_classes=3):
    net = Counted(nn.Dense(6, num_classes))
    Counted.made += 1
    Counted.alive.add(net)
    return net

class Pair(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = build()

    def construct(self, x):
        scores = self.net(x)
        return scores, scores

def nothing():
    return iter(())

def number():
    return 3
"""
TINY = ["tinynetwork:build", "--input", "8,6", "--classes", "3", "--dims", "1,2,4,8"]


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    (folder / "tinynetwork.py").write_text(MODULE)
    return folder


@pytest.fixture(autouse=True)
def _here(code, monkeypatch, quick):
    monkeypatch.chdir(code)
    monkeypatch.setattr(network_argument.sys, "path", list(network_argument.sys.path))
    monkeypatch.setattr(terminal.console, "_width", 120, raising=False)


def thor(*arguments):
    return CliRunner().invoke(app.app, [str(argument) for argument in arguments])


def refused(*arguments):
    """The message of a command that must fail: one line, no traceback."""
    result = thor(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


def test_profile_writes_a_file_a_table_and_a_picture_and_show_repeats_them(tmp_path):
    out = tmp_path / "a folder [x]" / "tiny.json"
    result = thor("profile", *TINY, "--out", out)
    assert result.exit_code == 0, result.output
    found = Profile.load(out)
    assert found.settings["network"] == "tinynetwork:build" and found.settings["classes"] == 3
    assert [f.dim for f in found.factors] == [7, 5, 6, 3]
    assert f"block size: {found.crossing().chosen}" in result.stdout
    assert "synthetic data" in result.stdout
    picture = out.with_suffix(".png")
    assert f"wrote {out} and {picture}" in result.stdout  # brackets of a path are no markup
    assert matplotlib.image.imread(picture).std() > 0.05

    picture.unlink()
    shown = thor("show", out, "--threshold", "0.5", "--interval", "10", "--budget", "1e-12")
    assert shown.exit_code == 0, shown.output
    found.threshold = 0.5
    assert f"block size: {found.crossing().chosen}" in shown.stdout
    assert "every 10 steps" in shown.stdout and "no plan refreshes within budget" in shown.stdout
    assert picture.exists()


def test_eigenbases_are_profiled_and_named(tmp_path):
    out = tmp_path / "basis.json"
    result = thor("profile", *TINY, "--precondition", "eigenbasis", "--out", out)
    assert result.exit_code == 0, result.output
    found = Profile.load(out)
    assert found.environment["inverse"] == "eigh" and found.of == "eigenbasis"
    assert "eigenbases by eigh" in result.stdout and "one eigenbasis" in result.stdout
    assert "by inverses" in result.stdout and "one inverse" not in result.stdout
    words = refused("profile", *TINY, "--precondition", "eigenbasis", "--inverse", "lapack")
    assert "--inverse lapack: with --precondition eigenbasis nothing is inverted" in words
    assert "eigenbasi" in refused("profile", *TINY, "--precondition", "eigenbases")


def test_without_out_nothing_is_written(tmp_path, monkeypatch):
    result = thor("profile", "tinynetwork:autoencoder", "--data", "tinynetwork:batches", "--loss", "tinynetwork:loss")
    assert result.exit_code == 2 and "has no 'loss'" in result.stderr
    result = thor("profile", "tinynetwork:autoencoder", "--input", "8,6", "--loss", "squared-error", "--dims", "1,2")
    assert result.exit_code == 0, result.output
    assert "block size: " in result.stdout and "wrote" not in result.stdout


def test_own_data_are_averaged_over_batches_and_fresh_overwrites_what_was_there(tmp_path):
    out = tmp_path / "p.json"
    out.write_text("{")
    arguments = ("--data", "tinynetwork:batches", "--batches", "2", "--skip", "^2$", "--dims", "1,2,4")
    result = thor("profile", "tinynetwork:build", *arguments, "--out", out, "--fresh")
    assert result.exit_code == 0, result.output
    assert "synthetic" not in result.stdout and "data: tinynetwork:batches, 2 batches" in result.stdout
    assert [layer.name for layer in Profile.load(out).layers] == ["0"]
    before = out.read_bytes()
    message = refused("profile", "tinynetwork:autoencoder", "--input", "8,6", "--out", out)
    assert "holds a complete profile of tinynetwork:build" in message and "--fresh" in message
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tinynetwerk:build"], ("no module 'tinynetwerk'", "did you mean 'tinynetwork'?")),
        (["tinynetwork:built"], ("has no 'built'", "did you mean 'build'?")),
        (["tinynetwork:number", "--input", "8,6"], ("made a int", "mindspore.nn.Cell")),
        (["tinynetwork"], ("module:callable",)),
        (["tinynetwork:build"], ("--data", "--input")),
        (["tinynetwork:build", "--input", "8,x"], ("--input '8,x'", "8,3,224,224")),
        (
            ["tinynetwork:build", "--input", "8,7"],
            (
                "does not take an input of shape (8, 7); it says:\n",
                "input dimensions must be equal",
            ),
        ),
        (["tinynetwork:build", "--data", "tinynetwork:nothing"], ("the data has no batch",)),
        (["tinynetwork:build", "--data", "tinynetwork:batches", "--batches", "99"], ("--batches 99: the data has",)),
        (["tinynetwork:build", "--input", "8,6", "--memory", "inf"], ("--memory must be finite",)),
        (["tinynetwork:build", "--input", "8,6", "--memory", "0"], ("--memory must be", "0")),
        ([*TINY[:-1], "1,x"], ("--dims '1,x'", "positive integers")),
        ([*TINY[:-1], "0,4"], ("--dims '0,4'", "positive integers")),
        ([*TINY[:-1], "-4,4"], ("--dims '-4,4'", "positive integers")),
        ([*TINY[:-1], "1.5,4"], ("--dims '1.5,4'", "positive integers")),
        ([*TINY[:-1], ""], ("--dims ''", "positive integers")),
        ([*TINY[:-1], "16"], ("--dims '16'", "at least two")),
        ([*TINY, "--device", "TPU"], ("device must be one of CPU, GPU, Ascend or auto", "'TPU'")),
        ([*TINY, "--device", "Ascend"], ("device Ascend is not available", "present: CPU")),
        ([*TINY, "--threshold", "0"], ("--threshold", "between 0 and 1", "0.0")),
        ([*TINY, "--damping", "-1"], ("--damping", "greater than 0", "-1.0")),
        ([*TINY, "--budget", "0"], ("--budget", "greater than 0", "0.0")),
        ([*TINY, "--skip", "("], ("skip", "'('", "regular expression")),
        ([*TINY, "--skip", "."], ("no layer to profile", "matches skip")),
        ([*TINY, "--loss", "mse"], ("--loss 'mse'", "squared-error")),
        (
            [*TINY, "--loss", "squared-error"],
            ("the loss does not take outputs of shape (8, 3)", "--loss", "it says:\n"),
        ),
        (
            ["tinynetwork:Pair", "--input", "8,6", "--classes", "3"],
            (
                "the network returns 2 outputs, and the loss takes one tensor: profile a Cell that returns only",
                "--loss",
            ),
        ),
        ([*TINY, "--inverse", "qr"], ("inverse must be one of lapack", "'qr'")),
        ([*TINY, "--memory", "1e-9"], ("layer 0 alone needs", "raise the limit")),
        ([*TINY, "--out", "picture.png"], ("--out picture.png", ".json")),
    ],
)
def test_bad_input_is_answered_with_one_line_before_anything_is_measured(arguments, words, quick):
    message = refused("profile", *arguments)
    assert all(word in message for word in words), message
    assert message.startswith("error: ")
    assert "C++" not in message
    assert len(message.splitlines()) == 1 or "it says:" in message.splitlines()[0]
    assert quick[0] == 0


def test_numbers_out_of_their_range_are_refused_by_the_command_line():
    for option in ("--batches", "--rank", "--interval", "--classes", "--batch-size"):
        result = thor("profile", *TINY, option, "0")
        assert result.exit_code == 2 and option in result.output


def interrupt_at(monkeypatch, module, name, after):
    """A Ctrl-C when a unit begins, after so many of them."""
    real, calls = getattr(module, name), [0]

    def interrupted(*arguments):
        calls[0] += 1
        if calls[0] > after:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, name, interrupted)


def test_an_interrupt_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path, monkeypatch, quick):
    out = tmp_path / "p.json"
    with monkeypatch.context() as patch:
        interrupt_at(patch, timing, "time_calls", 1)  # single blocks are timed, batches are not
        result = thor("profile", *TINY, "--out", out)
    assert result.exit_code == 130
    assert f"interrupted: what was measured is in {out}; the same command goes on from there" in result.stderr
    part = Profile.load(out, partial=True)
    assert len(part.calls) == 4 and not part.blocks and not part.complete
    assert "the measurement was interrupted" in refused("show", out)

    with monkeypatch.context() as patch:
        interrupt_at(patch, gather, "gather", 0)
        result = thor("profile", *TINY, "--out", out)
    assert result.exit_code == 130 and f"what was measured is in {out}; the same command goes on" in result.stderr
    part = Profile.load(out, partial=True)
    assert len(part.refreshes) == 4 and not part.layers

    message = refused("profile", *TINY, "--rank", "3", "--out", out)
    assert "the interrupted profile has rank = 16, not 3" in message and "start afresh" in message
    assert Profile.load(out, partial=True) == part

    with monkeypatch.context() as patch:
        interrupt_at(patch, timing, "time_calls", 1)
        result = thor("profile", *TINY, "--out", tmp_path / "q.json", "--fresh")
    assert "the same command without --fresh goes on from there" in result.stderr

    quick[0] = 0
    result = thor("profile", *TINY, "--out", out)
    assert result.exit_code == 0 and quick[0] == 0  # every time was there
    assert "going on from" in result.stdout and "4 times and 0 layers are there" in result.stdout
    found = Profile.load(out)
    assert found.complete and found.calls == part.calls


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_signal_is_an_interrupt(number, tmp_path, monkeypatch):
    """MindSpore takes SIGINT for itself and answers with a SIGTERM, which would end the process without a word."""
    before = signal.getsignal(signal.SIGTERM)
    real = timing.time_calls

    def signalled(*arguments):
        os.kill(os.getpid(), number)
        return real(*arguments)

    monkeypatch.setattr(timing, "time_calls", signalled)
    result = thor("profile", *TINY, "--out", tmp_path / "p.json")
    assert result.exit_code == 130 and "interrupted: " in result.stderr
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_without_out_says_that_nothing_is_kept(monkeypatch, tmp_path):
    interrupt_at(monkeypatch, timing, "time_calls", 1)
    result = thor("profile", *TINY)
    assert result.exit_code == 130 and "interrupted: nothing is kept; give --out" in result.stderr
    interrupt_at(monkeypatch, timing, "time_calls", 0)
    result = thor("profile", *TINY, "--out", tmp_path / "p.json")
    assert result.exit_code == 130 and "interrupted: nothing was measured yet" in result.stderr
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ("corrupt or truncated",)),
        (b'{"format": "thor-profile", "vers', ("corrupt or truncated",)),
        (b'{"format": "thor-profile", "version": 7}', ("version 7 is newer",)),
        (b"[]", ("not a profile",)),
        (b'{"format": "thor-profile", "version": 1}', ("missing", "settings")),
        (b"\xff\xfe\x00", ("cannot be read",)),
    ],
)
def test_a_profile_that_cannot_be_used_is_neither_shown_nor_overwritten(content, words, tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(content)
    message = refused("show", path)
    assert all(word in message for word in (str(path), *words)), message
    message = refused("profile", *TINY, "--out", path)
    assert all(word in message for word in (str(path), *words, "--fresh")), message
    assert path.read_bytes() == content


def test_show_refuses_what_it_cannot_use(tmp_path):
    assert "no such profile; measure one with" in refused("show", tmp_path / "p.json")
    plain_profile().save(tmp_path / "p.json")
    assert "--threshold must lie between 0 and 1, but got 2.0" in refused("show", tmp_path / "p.json", "--threshold", 2)
    assert "--budget must be greater than 0" in refused("show", tmp_path / "p.json", "--budget", "-1")
    blocked = plain_profile()
    blocked.save(tmp_path / "q.json")
    (tmp_path / "q.png").mkdir()
    assert "q.png" in refused("show", tmp_path / "q.json")


def test_a_launch_floor_that_reaches_far_is_shown(tmp_path):
    flat = plain_profile(call=lambda n: 1e-4)
    flat.save(tmp_path / "p.json")
    result = thor("show", tmp_path / "p.json")
    assert result.exit_code == 0 and "launch floor 100 us" in result.stdout
    assert "up to 64 one inverse costs what its call costs" in result.stdout


def test_choose_takes_curves_from_elsewhere(tmp_path):
    path = tmp_path / "curves.csv"
    path.write_text("dim,kept,performance\n1,0.07,1.0\n64,0.17,0.29\n128,0.25,0.17\n256,0.43,0.07\n")
    result = thor("choose", path)
    assert result.exit_code == 0
    assert result.stdout.strip() == "block size 128: the curves cross at (102, 0.22)"
    path.write_text("dim,kept,time\n1,0.5,1.0\n64,0.6,3.0\n")
    assert thor("choose", path).stdout.startswith("block size 64: the curves cross at (42, 0.57)")
    path.write_text("dim,kept,time\n1,0.1,1.0\n64,0.1,1.0\n")
    assert thor("choose", path).stdout.startswith("block size 64: performance exceeds kept everywhere")
    path.write_text("dim,kept\n1,0.5\n")
    assert "needs a header with the columns dim, kept and time" in refused("choose", path)
    assert "missing.csv: no such file" in refused("choose", tmp_path / "missing.csv")


def settings(**changed):
    """Settings of a command without options, but for some."""
    given = inspect.signature(profile.profile).parameters
    plain = {name: parameter.default for name, parameter in given.items()}
    return profile.ProfileSettings(**plain | {"network": "tinynetwork:build"} | changed)


def test_settings_are_checked_and_make_what_is_measured(monkeypatch):
    found = settings(input="8,6", classes=3, dims="4,1,4", memory=0.5, skip=["^2$"])
    assert found.shape() == (8, 6) and found.block_sizes() == [1, 4] and found.held_bytes() == 2**29
    assert settings().shape() is settings().block_sizes() is None
    monkeypatch.setattr(profile, "available_memory", lambda: 10)
    assert settings().held_bytes() == 5
    task = found.task()
    assert task.net[-1].out_channels == 3 and task.skip == ("^2$",) and task.dims == [1, 4]
    assert task.describe["source"] == "synthetic" and task.describe["batch_size"] == 8
    with pytest.raises(AttributeError):
        found.rank = 3  # frozen


@pytest.mark.parametrize(
    ("name", "value"),
    [("out", Path("p.png")), ("threshold", 1.0), ("damping", 0.0), ("budget", 0.0), ("memory", 0.0), ("input", "8"),
     ("dims", "8")],
)  # fmt: skip
def test_settings_out_of_their_range_are_refused_with_option_and_value(name, value):
    with pytest.raises((UserError, ValueError), match=rf"^--{name}\b.*{re.escape(str(value))}"):
        settings(**{name: value})


def test_the_network_is_gone_and_nothing_is_printed_as_the_interpreter_ends(code):
    """MindSpore prints a traceback for each Cell that is still there after its module."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from thor.cli import main; main()"
    for network in ("tinynetwork:build", "tinynetwork:mobile"):
        command = [sys.executable, "-c", program, "profile", network, *TINY[1:]]
        ended = subprocess.run(command, cwd=code, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        assert "Exception ignored" not in ended.stderr and "Traceback" not in ended.stderr


def test_a_command_lets_go_of_its_network(code):
    import tinynetwork

    result = thor("profile", "tinynetwork:counted", *TINY[1:])
    assert result.exit_code == 0, result.output
    assert thor("profile", "tinynetwork:counted", "--input", "8,7").exit_code == 2
    gc.collect()
    assert tinynetwork.Counted.made == 2 and not list(tinynetwork.Counted.alive)
