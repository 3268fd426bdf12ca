"""docs/reference/settings.md has the settings of today, and the networks of docs/guides/command-line.md train."""

import re
import shlex

import pytest

from scripts import train
from scripts.docs import settings_tables
from scripts.run_folder.metrics_recorder import read_metrics
from tests.support.paths import ROOT
from tests.support.tiny_runs import write_set

PAGE = settings_tables.PAGE.read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guides" / "command-line.md").read_text(encoding="utf-8")


def test_the_page_has_the_settings_of_today():
    assert settings_tables.renewed(PAGE) == PAGE, "settings have changed: python scripts/docs/settings_tables.py"


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ("thor.damping_schedule", "a shape, or a block [Schedule](#schedule), or null | `null` | Another way"),
        ("data.crop", "whole number >= 0, <= 14 | `0` | Random shift"),
        ("thor.interval", "a number of steps, or a block [Interval](#interval), or null | `null` | Updates between"),
        ("thor.clip", "number > 0, or null | `null` | Bound on the squared length of a step in the curvature's norm;"),
        ("tensorboard", "true, false | `false` | Also write"),
        ("loss_scale", "a fixed factor, or `dynamic` | `1` | Factor on the loss"),
        ("end", "whole number >= 1 | needed | Updates between"),
    ],
)
def test_what_a_line_says(key, row):
    assert f"\n| `{key}` | {row}" in settings_tables.renewed(settings_tables.MARK)


def test_help_and_a_check_write_nothing(tmp_path, monkeypatch, capsys):
    page = tmp_path / "settings.md"
    page.write_text(f"# Settings\n{settings_tables.MARK}\nold")
    monkeypatch.setattr(settings_tables, "PAGE", page)
    for arguments, status in ((["--help"], 0), (["--chek"], 2)):
        with pytest.raises(SystemExit) as caught:
            settings_tables.main(arguments)
        assert caught.value.code == status
    assert settings_tables.main(["--check"]) == 1 and "run scripts/docs/settings_tables.py" in capsys.readouterr().err
    assert page.read_text().endswith("old")
    assert settings_tables.main([]) == settings_tables.main(["--check"]) == 0
    assert "| `epochs` |" in page.read_text()


def test_a_page_without_the_mark_is_refused():
    with pytest.raises(ValueError, match=r"settings\.md: the line '<!-- .*' is missing: set it where the tables begin"):
        settings_tables.renewed("# Settings\n")


@pytest.mark.parametrize("network", ["Mlp", "WordPairs"])
def test_the_networks_of_the_page_train_as_it_says(network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mynet.py").write_text(re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1])
    command = re.search(rf"^python scripts/train\.py (--network mynet:{network} .*)$", GUIDE, re.MULTILINE)[1]
    if network == "Mlp":
        small = ["--data.folder", str(write_set(tmp_path / "images"))]
    else:
        (tmp_path / "words.txt").write_text("one fine day the small cat sat on the red mat . " * 80)
        small = ["--data.folder", str(tmp_path / "words.txt"), "--data.length", "16", "--data.vocabulary", "100"]
    assert train.main([*shlex.split(command), *small, "--batch_size", "8", "--device", "CPU"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert any("test_accuracy" in line for line in read_metrics(run))
