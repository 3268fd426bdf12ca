"""Runs side by side, of which one has diverged, is not evaluated yet, or has a name of its own."""

import io
import math

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from scripts import compare, plot
from scripts.compare import Result
from scripts.run_folder.checkpoints import choose
from scripts.training.evaluation import Scores
from thor.runtime.errors import UserError


def errors_of(*values):
    return [
        {"kind": "eval", "test_loss": 1.0, "test_error": value, "epoch": number, "seconds": 1.0 * number}
        for number, value in enumerate(values, 1)
    ]


def result(name, *values):
    return Result(name, "adam", "test_error", errors_of(*values), None)


def cells(table):
    return {str(column.header): list(column.cells) for column in table.columns}


@pytest.mark.parametrize("first", [0, 1])
def test_a_run_that_diverged_sets_no_goal(first):
    runs = [result("fine", 5.0, 3.0), result("lost", math.nan, math.nan)]
    shown = cells(compare.table(runs if first == 0 else runs[::-1]))
    assert shown["to 3"] == ["2 ep, 2 s", "-"] if first == 0 else ["-", "2 ep, 2 s"]


def test_the_best_of_a_run_is_a_number_if_there_is_one():
    assert result("late", math.nan, 2.0, 4.0).best["test_error"] == 2.0
    assert math.isnan(result("never", math.nan).best["test_error"])
    assert cells(compare.table([result("never", math.nan)]))["to nan"] == ["-"]


def test_brackets_of_a_name_are_no_markup():
    runs = [result("r8[adam]", 3.0), result("r8[red]", 4.0)]
    console = Console(width=200, file=io.StringIO())
    console.print(compare.table(runs))
    assert "r8[adam]" in console.file.getvalue() and "r8[red]" in console.file.getvalue()


@pytest.mark.parametrize("name, values", [("error", (math.nan, 3.0, 2.0)), ("accuracy", (math.nan, 0.2, 0.3))])
def test_a_score_that_is_no_number_is_never_the_best(name, values):
    lost, first, better = (Scores(1.0, {name: value}, 9) for value in values)
    assert not lost.better_than(None) and not lost.better_than(values[1])
    assert first.better_than(None) and first.better_than(math.nan)  # which earlier code has kept
    assert better.better_than(values[1]) and not first.better_than(values[2])


def test_the_axis_is_that_of_the_runs_that_were_evaluated():
    axes = Figure().subplots()
    plot._scores(axes, {"done": errors_of(5.0), "_new": []}, "epoch", "epoch")
    assert axes.get_ylabel() == "Test squared error an image"
    assert [text.get_text().strip() for text in axes.get_legend().get_texts()] == ["done", "_new"]
    accuracy = [{"kind": "eval", "test_loss": 1.0, "test_accuracy": 0.5, "epoch": 1, "seconds": 1.0}]
    with pytest.raises(UserError, match="different metrics, test_error of one, test_accuracy of other"):
        plot._scores(axes, {"one": errors_of(5.0), "other": accuracy}, "epoch", "epoch")


def test_a_run_without_a_best_checkpoint_says_which_there_is(tmp_path):
    with pytest.raises(UserError, match="is .* the folder of a run"):
        choose(tmp_path, "best")
    for suffix in (".json", ".ckpt"):
        (tmp_path / f"step-00000007{suffix}").touch()
    with pytest.raises(UserError, match="no evaluation gave a number yet; --checkpoint last is there"):
        choose(tmp_path, "best")
    assert choose(tmp_path, "last") == tmp_path / "step-00000007.ckpt"
