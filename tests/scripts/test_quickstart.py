from types import SimpleNamespace

import pytest
from PIL import Image

from scripts import plot, quickstart
from scripts.common.errors import INTERRUPTED
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.training import loop
from tests.support.tiny_runs import write_set
from thor.runtime.errors import UserError


def test_table_and_picture_from_the_same_start(tmp_path, capsys, monkeypatch):
    folder = write_set(tmp_path / "data")
    arguments = ["--data.folder", str(folder), "--batch_size", "8", "--log_every", "1", "--epochs", "2"]
    arguments += ["--network", "tests.scripts.test_quickstart:tiny_classifier", "--out", str(tmp_path / "out")]
    assert quickstart.main(arguments) == 0
    shown = capsys.readouterr().out
    for heading in (
        "fashion_mnist, test accuracy",
        "thor",
        "momentum",
        "after epoch",
        "training seconds",
        "refreshes kept",
        "layers stopped",
    ):
        assert heading in shown
    with Image.open(tmp_path / "out" / "curves.png") as picture:
        assert picture.width >= 1200 and picture.height >= 1200
    first = {o: read_metrics(tmp_path / "out" / o) for o in ("thor", "momentum")}
    losses = [next(line["loss"] for line in lines if line["kind"] == "step") for lines in first.values()]
    assert abs(losses[0] - losses[1]) < 1e-5, "both must start from the same weights and batch"
    assert any(line["kind"] == "refresh" for line in first["thor"])


def test_a_network_that_reconstructs_has_its_error_in_the_table(tmp_path):
    epochs = [{"epoch": 1, "test_error": 30.5}, {"epoch": 2}]
    summary = {"optimizer": "thor", "data": "fashion_mnist", "epochs": epochs, "seconds": 3.0,
               "median_ms_per_step": 7.0, "refreshes": {"update": 1, "keep": 0, "stop": 0}}  # fmt: skip
    grid = quickstart.table([summary])
    assert grid.title == "fashion_mnist, test squared error an image"
    assert list(grid.columns[1].cells)[:2] == ["30.5", "-"]


def test_help_says_what_it_does(capsys):
    with pytest.raises(SystemExit) as ended:
        quickstart.main(["--help"])
    assert ended.value.code == 0 and "--out OUT" in capsys.readouterr().out


def test_it_can_be_repeated(tmp_path, monkeypatch):
    asked = {}

    def train(settings, **options):
        asked.update(options)
        return SimpleNamespace(finished=False)

    monkeypatch.setattr(loop, "train", train)
    assert quickstart.main(["--out", str(tmp_path)]) == INTERRUPTED
    assert asked["overwrite"] is True


@pytest.mark.parametrize("arguments", [["--optimizer", "adam"], ["--optimizer=thor"]])
def test_both_optimizers_are_given(arguments):
    with pytest.raises(UserError, match="--optimizer: the quickstart trains thor and momentum"):
        quickstart.main(arguments)


def test_plot_as_a_program_names_an_empty_folder(tmp_path):
    import pytest

    from thor.runtime.errors import UserError

    with pytest.raises(UserError, match=r"metrics\.jsonl: missing, or without a complete line"):
        plot.main([str(tmp_path), "--out", str(tmp_path / "curves.png")])


def tiny_classifier():
    from mindspore import nn

    return nn.SequentialCell(nn.Flatten(), nn.Dense(784, 16), nn.ReLU(), nn.Dense(16, 10))
