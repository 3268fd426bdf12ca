"""The study of one setting at a time: its runs, its tables and its picture."""

import json

import matplotlib.image
import pytest

from scripts.convergence import sensitivity
from scripts.convergence.results import Outcome
from scripts.convergence.search import settings
from scripts.convergence.tasks import TASKS
from scripts.settings.yaml_config import validate

AUTOENCODER, RESIDUAL = TASKS["autoencoder"], TASKS["resnet8-128"]


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_every_run_is_valid_and_differs_from_the_start_in_what_moves(task):
    contender = task.contender("thor_eigen")
    runs = [values for points in sensitivity.moved(task).values() for values in points.values()]
    runs += list(sensitivity.grid(task).values())
    for values in runs:
        own = validate(settings(task, contender, values, 11, 1)).thor
        assert own.precondition == "eigenbasis"
        changed = {key for key, value in values.items() if contender.start.get(key) != value}
        assert changed <= {"thor.learning_rate", "thor.block_size", "thor.interval", "thor.factor_interval"}


@pytest.mark.parametrize(
    ("task", "values", "expected"),
    [
        (AUTOENCODER, {1: 12.0, 2: 10.2, 4: 10.0, 8: 10.29, 16: 10.31}, (2, 8)),
        (AUTOENCODER, {1: 10.0, 2: 11.0, 4: 10.1}, (1, 1)),  # a gap ends the range
        (AUTOENCODER, {1: None, 2: 10.0, 4: None}, (2, 2)),
        (RESIDUAL, {1: 0.80, 2: 0.86, 4: 0.84}, (2, 4)),
    ],
)
def test_the_range_that_is_as_good_as_the_best(task, values, expected):
    assert sensitivity.width(task, values) == expected


def outcome(value):
    return Outcome("thor_eigen", 11, ({"test_error": value},), 0, 0)


def test_tables_numbers_and_picture(monkeypatch, tmp_path, capsys):
    asked = []

    def run_all(self, runs):
        asked.extend(name for _, _, _, name in runs)
        return [None if "512" in name else outcome(float(len(name))) for _, _, _, name in runs]

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


@pytest.mark.parametrize("arguments", [["--task", "mnist"], ["--epochs", "0"], ["--seed", "-1"], ["--jobs", "x"]])
def test_wrong_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        sensitivity.main(arguments)
    assert caught.value.code == 2 and arguments[0] in capsys.readouterr().err
