"""``make compat``: what is asked for is tried, or refused with what can be asked for."""

import runpy
import sys

import pytest

from tests.support.paths import ROOT

COMPAT = runpy.run_path(str(ROOT / ".ci" / "compat.py"), run_name="compat")
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
Refused = COMPAT["Refused"]


def interpreter(path, version):
    """A program that answers as a Python of this version does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_every_test_of_the_list_is_there():
    assert all((ROOT / test).is_file() for test in COMPAT["TESTS"])


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("", "VERSION is missing: .*2.7.0, .*VERSION=2.7.0 PYTHON=3.10"),
        ("2.6.0", "VERSION=2.6.0 .*one of 2.7.0, 2.7.1"),
    ],
)
def test_versions_of_mindspore_that_are_refused(version, message):
    with pytest.raises(Refused, match=message):
        COMPAT["release_of"](version)


def test_a_python_without_a_wheel_is_refused_and_those_with_one_are_named():
    release = COMPAT["release_of"]("2.7.0")
    COMPAT["check_wheel"]("2.7.0", release, "3.10")
    with pytest.raises(Refused, match=r"MindSpore 2.7.0 has no wheel for Python 3.12: .*3.10, 3.11$"):
        COMPAT["check_wheel"]("2.7.0", release, "3.12")


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("", "PYTHON is missing: one of 3.10, 3.11, 3.12"),
        ("3.9", "PYTHON=3.9 is not supported"),
        ("/nowhere/python", "PYTHON=/nowhere/python does not run"),
    ],
)
def test_pythons_that_are_refused(python, message):
    with pytest.raises(Refused, match=message):
        COMPAT["interpreter_of"](python, {})


def test_an_interpreter_is_named_by_its_path():
    assert COMPAT["interpreter_of"](sys.executable, {}) == (sys.executable, HERE)


def test_a_path_to_another_python_is_refused(tmp_path):
    path = interpreter(tmp_path / "python", "3.13")
    with pytest.raises(Refused, match="is Python 3.13: must be an interpreter of Python 3.10"):
        COMPAT["interpreter_of"](path, {})


def test_the_newest_of_pyenv_is_taken_where_path_has_none(tmp_path, monkeypatch):
    for patch in (9, 13, 2):
        interpreter(tmp_path / "versions" / f"3.10.{patch}" / "bin" / "python", "3.10")
    monkeypatch.setenv("PATH", str(tmp_path))
    path, version = COMPAT["interpreter_of"]("3.10", {"PYENV_ROOT": str(tmp_path)})
    assert (path, version) == (str(tmp_path / "versions" / "3.10.13" / "bin" / "python"), "3.10")
    with pytest.raises(Refused, match=r"no Python 3.12 here: .*PYTHON=/path/to/python3.12"):
        COMPAT["interpreter_of"]("3.12", {"PYENV_ROOT": str(tmp_path)})


def test_the_command_ends_with_what_was_wrong(capsys):
    assert COMPAT["main"](["--version", "1.0", "--python", sys.executable]) == 2
    assert capsys.readouterr().err.startswith("compat: VERSION=1.0 is not supported: must be one of 2.7.0")


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    monkeypatch.delenv("THOR_TEST_DEVICE", raising=False)
    ran = []
    install = COMPAT["install"]
    monkeypatch.setitem(install.__globals__, "ROOT", tmp_path)
    monkeypatch.setattr(COMPAT["subprocess"], "run", lambda command, **_: ran.append(command))
    (tmp_path / "pyproject.toml").write_text("one", encoding="utf-8")
    folder = tmp_path / ".compat" / "2.7.0-3.10"
    folder.mkdir(parents=True)
    install(folder, "python3.10", "2.7.0")
    assert ran[0] == ["python3.10", "-m", "venv", str(folder)] and "mindspore==2.7.0" in ran[1] and len(ran) == 2
    install(folder, "python3.10", "2.7.0")
    assert len(ran) == 2
    (tmp_path / "pyproject.toml").write_text("other", encoding="utf-8")
    install(folder, "python3.10", "2.7.0")
    assert len(ran) == 4 and "sympy" not in ran[-1]
    monkeypatch.setenv("THOR_TEST_DEVICE", "Ascend")
    install(folder, "python3.10", "2.7.0")
    assert "sympy" in ran[-1]


@pytest.mark.parametrize(("status", "word"), [(0, "all passed"), (1, "FAILED"), (5, "FAILED")])
def test_the_last_line_tells_how_it_went(status, word, monkeypatch, capsys):
    main = COMPAT["main"]
    monkeypatch.setitem(main.__globals__, "install", lambda *_: None)
    monkeypatch.setitem(main.__globals__, "run_tests", lambda *_: status)
    assert main(["--version", "2.10.0", "--python", sys.executable]) == status
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"compat: MindSpore 2.10.0, Python {HERE}: {word} (")


@pytest.mark.parametrize(("words", "options"), [([], []), (["--quick"], ["-k", "not PYNATIVE"])])
def test_the_list_is_run_or_its_quick_part(words, options, monkeypatch):
    ran = []
    main = COMPAT["main"]
    monkeypatch.setitem(main.__globals__, "install", lambda *_: None)

    def run(command, **rest):
        ran.append((command, rest))
        return COMPAT["subprocess"].CompletedProcess(command, 0)

    monkeypatch.setitem(main.__globals__, "interpreter_of", lambda *_: ("python", "3.11"))
    monkeypatch.setattr(COMPAT["subprocess"], "run", run)
    assert main(["--version", "2.7.0", "--python", "3.11", *words]) == 0
    ((command, rest),) = ran
    folder = ROOT / ".compat" / "2.7.0-3.11" / "bin"
    assert command[0] == str(folder / "python") and command[-len(COMPAT["TESTS"]) :] == list(COMPAT["TESTS"])
    assert [each for each in command if each in ("-k", "not PYNATIVE")] == options
    assert rest["env"]["PATH"].startswith(f"{folder}:")
