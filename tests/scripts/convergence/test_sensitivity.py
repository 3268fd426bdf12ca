"""The study of one setting at a time: its runs, its tables and its picture."""

import json

import matplotlib.image
import pytest

from scripts.convergence import rules, search, sensitivity
from tests.scripts.convergence.made import broken
from tests.scripts.convergence.made import run as made

FULL = rules.load(rules.DEFAULT)
AUTOENCODER, RESIDUAL = FULL.tasks["autoencoder"], FULL.tasks["resnet8-128"]


@pytest.mark.parametrize("task", list(FULL.tasks))
def test_every_run_is_valid_and_differs_from_the_first_guess_in_what_moves(task):
    first = search.trials(FULL, task, "thor")[0]
    runs = [values for points in sensitivity.moved(FULL, task).values() for values in points.values()]
    runs += list(sensitivity.grid(FULL, task).values())
    for values in runs:
        settings = search.settings(sensitivity.lasting(FULL, task, 3), task, "thor", values, 11)
        assert settings.thor.precondition == "eigenbasis" and settings.epochs == 3
        changed = {key for key, value in values.items() if first.get(key) != value}
        assert changed <= {
            "thor.learning_rate", "thor.schedule", "thor.block_size", "thor.interval", "thor.factor_interval",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("task", "values", "expected"),
    [
        (AUTOENCODER, {1: 12.0, 2: 10.2, 4: 10.0, 8: 10.29, 16: 10.31}, (2, 8)),
        (AUTOENCODER, {1: 10.0, 2: 11.0, 4: 10.1}, (1, 1)),  # a gap ends the range
        (AUTOENCODER, {1: None, 2: 10.0, 4: None}, (2, 2)),
        (AUTOENCODER, {1: None, 2: None}, None),
        (RESIDUAL, {1: 0.80, 2: 0.86, 4: 0.84}, (2, 4)),
    ],
)
def test_the_range_that_is_as_good_as_the_best(task, values, expected):
    assert sensitivity.width(task, values) == expected


def test_tables_numbers_and_picture(monkeypatch, tmp_path, capsys):
    asked = []

    def run_all(self, jobs):
        names = [job.folder.name for job in jobs]
        asked.extend(names)
        return [broken(11) if "512" in name else made(11, [float(len(name))]) for name in names]

    monkeypatch.setattr(sensitivity.Bench, "run_all", run_all)
    assert sensitivity.main(["--out", str(tmp_path)]) == 0
    assert len(asked) == len(set(asked)) == 5 + 4 + 7  # the start has the rate 1 and blocks of 128
    folder = tmp_path / "autoencoder-1"
    found = json.loads((folder / "sensitivity.json").read_text())
    assert (found["task"], found["seed"], len(found["runs"])) == ("autoencoder", 11, 17)
    assert (
        "broke down" in (folder / "sensitivity.md").read_text() and "Within 3% of the best" in capsys.readouterr().out
    )
    assert matplotlib.image.imread(folder / "sensitivity.png").shape[1] > 1000
    assert sensitivity.main(["--grid", "--out", str(tmp_path)]) == 0
    rows = (folder / "grid.md").read_text().splitlines()
    assert len(rows) == 2 + 3 * 2 and "grows" in rows[2] and rows[0].count("blocks of") == 3


def test_a_setting_with_which_every_run_broke_down_is_told(monkeypatch, tmp_path):
    """The other settings have their tables all the same."""

    def run_all(self, jobs):
        lost = [job.settings.thor.interval.start == job.settings.thor.interval.end for job in jobs]
        return [broken(11) if each else made(11, [3.0]) for each in lost]

    monkeypatch.setattr(sensitivity.Bench, "run_all", run_all)
    assert sensitivity.main(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "autoencoder-1" / "sensitivity.md").read_text()
    assert text.count("Every run broke down: loss or gradients were not finite.") == 1
    assert text.count("Within 3% of the best") == 2
    assert matplotlib.image.imread(tmp_path / "autoencoder-1" / "sensitivity.png").shape[1] > 1000


@pytest.mark.parametrize("arguments", [["--task", "mnist"], ["--epochs", "0"], ["--seed", "-1"], ["--jobs", "x"]])
def test_wrong_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        sensitivity.main(arguments)
    assert caught.value.code == 2 and arguments[0] in capsys.readouterr().err
