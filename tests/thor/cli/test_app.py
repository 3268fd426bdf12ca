"""``thor`` itself: help, version, and what is answered without MindSpore."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import thor
from tests.support.paths import ROOT
from tests.support.profiles import profile
from thor.cli.app import app

COMMANDS = ("profile", "show", "choose", "report", "plan", "doctor")
#: Runs thor, then fails where MindSpore was imported.
WITHOUT_MINDSPORE = """
import sys
sys.path.insert(0, {root!r})
from thor.cli import main
try:
    main()
except SystemExit as end:
    print("status", end.code)
assert "mindspore" not in sys.modules
"""


def run(*arguments, folder):
    code = WITHOUT_MINDSPORE.format(root=str(ROOT))
    ended = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_help_names_the_commands():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(f"\n  {name} " in result.stdout for name in (*COMMANDS, "--version"))
    assert CliRunner().invoke(app, []).output == result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0 and "--help" in result.stdout


def test_the_version():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"thor {thor.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--version"], 0, thor.__version__),
        (["--help"], 0, "Commands"),
        (["profile", "--help"], 0, "module:callable"),
        (["plan", "--help"], 0, "all-reduce"),
        (["doctor", "--help"], 0, "--shared"),
        (["nothing"], 2, "No such command"),
        (["profile"], 2, "Missing argument"),
        (["profile", "a:b", "--rank", "0"], 2, "--rank"),
        (["profile", "a:b", "--threshold", "2"], 2, "--threshold must lie between 0 and 1, but got 2.0"),
        (["profile", "a:b", "--damping", "0"], 2, "--damping must be finite and greater than 0, but got 0.0"),
        (["profile", "a:b", "--input", "8"], 2, "--input '8'"),
        (["show", "nowhere.json"], 2, "nowhere.json: no such profile"),
        (["choose", "nowhere.csv"], 2, "nowhere.csv: no such file"),
        (["report", "."], 2, "metrics.jsonl is missing"),
        (["plan"], 2, "Missing option"),
        (["plan", "--profile", "p.json", "--step-ms", "1", "--batch", "0"], 2, "batch must be at least 1"),
        (["doctor", "--host", "a"], 2, "--host needs --shared"),
    ],
)
def test_help_version_and_wrong_arguments_are_answered_without_mindspore(arguments, status, words, tmp_path):
    ended = run(*arguments, folder=tmp_path)
    assert words in ended.stdout + ended.stderr
    assert f"status {status}" in ended.stdout.splitlines()
    assert "Traceback" not in ended.stderr


def test_a_plan_needs_no_mindspore(tmp_path):
    profile().save(tmp_path / "p.json")
    ended = run("plan", "--profile", "p.json", "--step-ms", "20", "--batch", "8", "--out", "o.json", folder=tmp_path)
    assert "status 0" in ended.stdout and (tmp_path / "o.png").exists()


def test_a_library_of_the_command_line_that_is_missing_is_named(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['typer'] = None; from thor.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "error: the thor command needs typer: pip install '.[cli]' in its checkout\n"
