"""What is done with a run afterwards: evaluation, export, comparison."""

import errno
import json
import os
from pathlib import Path

import mindspore as ms
import numpy as np
import onnx
import pytest
from matplotlib.figure import Figure
from mindspore import nn
from onnx import version_converter
from onnx.reference import ReferenceEvaluator
from PIL import Image

from scripts import compare, eval, export, plot
from scripts.run_folder.checkpoints import choose, load_network
from scripts.run_folder.metrics_recorder import Recorder, read_metrics
from scripts.settings.yaml_config import validate
from scripts.training.loop import train
from scripts.training.networks import build_network
from scripts.training.run import CHECKPOINTS
from tests.scripts.data.samples import write_cifar
from tests.scripts.training.test_loop import quiet
from tests.support.tiny_runs import tiny_settings
from thor.runtime.errors import UserError


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two short runs of a small classifier with averaged weights."""
    folder = tmp_path_factory.mktemp("runs")
    network = {"network": "smallconv", "network_options": {}, "loss": "cross_entropy", "ema": 0.5, "epochs": 3}
    made = []
    for optimizer in ("momentum", "adam"):
        made.append(train(tiny_settings(folder, optimizer, optimizer, **network), console=quiet()))
    return made


def test_evaluation_repeats_what_training_found(runs, tmp_path, capsys):
    folder = runs[0].folder
    found = [line for line in read_metrics(folder) if line["kind"] == "epoch"]
    assert eval.main([str(folder), "--checkpoint", "last", "--out", str(tmp_path / "last.json")]) == 0
    last = json.loads((tmp_path / "last.json").read_text())
    assert last["test_accuracy"] == found[-1]["test_accuracy"] and last["count"] == 40
    assert last["test_loss"] == pytest.approx(found[-1]["test_loss"], rel=1e-5)
    assert last["weights"] == "averaged weights"
    assert eval.main([str(folder), "--out", str(tmp_path / "best.json"), "--data.test_size", "40"]) == 0
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["test_accuracy"] == max(line["test_accuracy"] for line in found)
    assert "test_top5" in capsys.readouterr().out


@pytest.mark.parametrize(
    "program, arguments, message",
    [
        (eval, ["{tmp}"], "not the folder of a run, config.yaml is missing"),
        (eval, ["{run}", "--checkpoint", "worst"], "--checkpoint worst: must be best or last, or a file"),
        (eval, ["{run}", "--network", "lenet5"], "belongs to another network, it lacks"),
        (
            eval,
            ["{run}", "--data.name", "cifar10", "--data.folder", "{cifar}"],
            "does not take an example of data.name",
        ),
        (export, ["{run}", "--batch", "0"], "--batch 0: must be at least 1"),
        (export, ["{run}", "--out", "net.bin"], "--out net.bin: must end with .mindir"),
        (eval, ["{tmp}/none"], "{tmp}/none: no such folder"),
        (compare, ["{tmp}/none"], "{tmp}/none: no such folder"),
        (compare, ["{run}/config.yaml"], "{run}/config.yaml: a file, not a run's folder"),
        (compare, ["{tmp}"], "{tmp}: not the folder of a run, config.yaml is missing"),
        (compare, ["{run}/.."], "config.yaml is missing; the folders of runs below it are {run}/../adam, {run}/../mom"),
        (compare, ["{new}"], "{new}: has no evaluation yet"),
        (compare, ["{run}", "{run}"], "a run is given twice"),
    ],
)
def test_errors(runs, tmp_path, program, arguments, message):
    places = {"tmp": tmp_path, "run": runs[0].folder, "cifar": write_cifar(tmp_path / "cifar10", "cifar10")}
    places["new"] = tmp_path / "data" / "new"
    places["new"].mkdir(parents=True)
    (places["new"] / "config.yaml").touch()
    with pytest.raises(UserError) as caught:
        program.main([argument.format(**places) for argument in arguments])
    assert message.format(**places) in str(caught.value)


@pytest.mark.parametrize(
    "program, out, words",
    [
        (eval, "{tmp}", "--out: must be a file to write, but {tmp} is a folder"),
        (eval, "{tmp}/file/x.json", "--out: the folder of {tmp}/file/x.json cannot be made"),
        (compare, "{tmp}/a.xyz", "--out: must end with .jpg, .pdf, .png, .svg, but got '{tmp}/a.xyz'"),
        (compare, "{tmp}", "--out: must end with .jpg"),
        (plot, "{tmp}/a", "--out: must end with .jpg"),
        (export, "{tmp}/a.png", "--out: must be a file to write, but {tmp}/a.png is a folder"),
        (plot, "{tmp}/a.png", "--out: must be a file to write, but {tmp}/a.png is a folder"),
    ],
)
def test_where_nothing_can_be_written_is_said_before_the_work(tmp_path, program, out, words, capsys):
    (tmp_path / "file").touch()
    (tmp_path / "a.png").mkdir()
    with pytest.raises(SystemExit) as ended:
        program.main([str(tmp_path / "no-run"), "--out", out.format(tmp=tmp_path)])
    assert ended.value.code == 2 and words.format(tmp=tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("program, name", [(eval, "x.json"), (compare, "x.png"), (plot, "x.svg")])
def test_the_folder_of_what_is_written_is_made_and_a_full_disk_is_told(runs, tmp_path, program, name):
    out = tmp_path / "new" / name
    assert program.main([str(runs[0].folder), "--out", str(out)]) == 0 and out.stat().st_size > 0
    full = tmp_path / f"full{out.suffix}"
    full.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\): .*; make room there"):
        program.main([str(runs[0].folder), "--out", str(full)])


def test_an_export_to_a_full_disk_is_told_as_that(runs, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ms, "export", full)
    with pytest.raises(UserError, match=r"No space left on device\): nothing is exported; make room there"):
        export.main([str(runs[0].folder), "--format", "onnx", "--out", str(tmp_path / "net.onnx")])


@pytest.mark.parametrize("names", [["net.mindir"], ["net_variables", "net_graph.mindir"]])
def test_mindir_gives_the_same_outputs(runs, tmp_path, names, monkeypatch, capsys):
    """Also as MindSpore splits a large network, and over what an earlier export has left."""
    if len(names) > 1:
        monkeypatch.setattr(ms.train.serialization, "TOTAL_SAVE", 100)  # KiB
    run, out = runs[0], tmp_path / "net.mindir"
    for _ in range(2):
        assert export.main([str(run.folder), "--batch", "4", "--out", str(out)]) == 0
        assert capsys.readouterr().out.startswith(f"{', '.join(str(tmp_path / name) for name in names)}: smallconv")
    loaded = nn.GraphCell(ms.load(str(tmp_path / names[-1])))
    network = build_network(run.settings)
    load_network(choose(run.folder / CHECKPOINTS, "best"), network)
    network.set_train(False)
    images = ms.Tensor(np.random.default_rng(0).standard_normal((4, 1, 28, 28)).astype(np.float32))
    np.testing.assert_allclose(loaded(images).asnumpy(), network(images).asnumpy(), rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("name, options", [("lenet5", {}), ("resnet8", {"in_channels": 1})])
def test_onnx_gives_the_same_outputs(tmp_path, name, options):
    """As ONNX's own evaluator runs the file, which knows nothing of MindSpore."""
    settings = tiny_settings(tmp_path, "momentum", network=name, network_options=options, loss="cross_entropy")
    network = build_network(settings)
    random = np.random.default_rng(0)
    for parameter in network.get_parameters():
        if parameter.ndim == 1:  # biases, and what BatchNorm has, start as zero or one
            change = 0.2 * random.random(parameter.shape).astype(np.float32)
            parameter.set_data(ms.Tensor(parameter.asnumpy() + change))
    ms.save_checkpoint(network, str(tmp_path / "net.ckpt"))
    export.export(settings, tmp_path / "net.ckpt", "onnx", 2, tmp_path / "net.onnx", tmp_path)
    images = random.standard_normal((2, 1, 28, 28)).astype(np.float32)
    # operators of set 11, as the file has them: there the evaluator takes batch statistics in BatchNorm, unlike ONNX
    evaluator = ReferenceEvaluator(version_converter.convert_version(onnx.load(tmp_path / "net.onnx"), 15))
    (found,) = evaluator.run(None, {evaluator.input_names[0]: images})
    network.set_train(False)
    np.testing.assert_allclose(found, network(ms.Tensor(images)).asnumpy(), rtol=1e-4, atol=1e-4)


def test_onnx_from_the_command_line(runs, tmp_path):
    out = tmp_path / "net.onnx"
    assert export.main([str(runs[0].folder), "--format", "onnx", "--out", str(out)]) == 0
    assert out.stat().st_size > 400_000  # 103,018 weights


class Odd(nn.Cell):
    """An operator that ONNX export does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(784, 10)
        self.flatten = nn.Flatten()

    def construct(self, x):
        return ms.ops.erfinv(0.1 * ms.ops.tanh(self.fc(self.flatten(x))))


class Places(nn.Cell):
    """A network of masked text that scores the tokens at given positions only."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table, self.output = nn.Embedding(vocab_size, 8), nn.Dense(8, vocab_size)

    def construct(self, tokens, positions):
        return self.output(self.table(ms.ops.gather_elements(tokens, 1, positions).reshape(-1)))


def test_a_network_of_masked_text_that_needs_positions_is_exported_with_them(tmp_path):
    (tmp_path / "words.txt").write_text("one fine day the small cat sat on the red mat . " * 80)
    data = {"name": "text", "folder": str(tmp_path / "words.txt"), "length": 16, "train_size": 20, "unit": "characters"}
    network = {"network": f"{__name__}:Places", "network_options": {}, "loss": "cross_entropy", "epochs": 1}
    settings = validate(
        {**network, "data": data, "optimizer": "momentum", "batch_size": 4, "out": str(tmp_path / "run")}
    )
    run = train(settings, console=quiet())
    assert export.main([str(run.folder), "--batch", "2", "--out", str(tmp_path / "net.mindir")]) == 0
    loaded = nn.GraphCell(ms.load(str(tmp_path / "net.mindir")))
    tokens, positions = ms.ops.arange(32).reshape(2, 16).astype(ms.int32) % 7, ms.Tensor([[1, 4], [2, 9]], ms.int32)
    np.testing.assert_allclose(
        loaded(tokens, positions).asnumpy(), run.network(tokens, positions).asnumpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_mixed_precision_takes_the_inputs_that_the_network_takes(level):
    """A Cell of MindSpore's is around the network then, which takes anything."""
    text = {"name": "text", "length": 16, "objective": "masked"}
    for name, inputs in ((f"{__name__}:Places", 2), ("bert_tiny", 1)):
        options = {"vocab_size": 20}
        settings = validate({"network": name, "network_options": options, "data": text, "amp": level, "device": "CPU"})
        assert len(export.example_inputs(settings, build_network(settings), 2)) == inputs


def test_onnx_says_where_it_cannot(tmp_path):
    network = {
        "network": "tests.scripts.test_eval_export_compare:Odd",
        "network_options": {},
        "loss": "cross_entropy",
        "epochs": 1,
    }
    run = train(tiny_settings(tmp_path, "momentum", **network), console=quiet())
    with pytest.raises(UserError, match="Odd cannot be exported as onnx: .*; --format mindir takes every network"):
        export.main([str(run.folder), "--format", "onnx"])
    assert not list(run.folder.glob("*onnx*"))


def test_comparison_is_one_table_and_one_picture(runs, tmp_path, capsys):
    folders = [str(run.folder) for run in runs]
    assert compare.main([*folders, "--out", str(tmp_path / "compare.png")]) == 0
    shown = capsys.readouterr().out
    assert "momentum" in shown and "adam" in shown and "ms/step" in shown
    with Image.open(tmp_path / "compare.png") as picture:
        assert picture.width > 1200
    first, second = compare.compare([Path(folder) for folder in folders])
    assert first.best["test_accuracy"] == max(line["test_accuracy"] for line in first.evaluations)
    assert first.reached(first.best["test_accuracy"]) == first.best
    assert second.reached(1.1) is None


def test_runs_of_one_name_in_two_folders_are_both_drawn(tmp_path, monkeypatch):
    drawn: list[str] = []
    monkeypatch.setattr(plot, "_losses", lambda axes, runs, *_: drawn.extend(runs))
    folders = [tmp_path / name / "thor" for name in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
        recorder = Recorder(folder)
        recorder.step(step=1, epoch=0.1, loss=2.0, ms_per_step=1.0, seconds=0.1)
        recorder.close()
    plot.plot(folders, tmp_path / "curves.png")
    assert drawn == ["a/thor", "b/thor"] * 2  # over epochs, and over seconds


def test_a_skipped_step_leaves_no_hole_in_the_curve_of_the_loss():
    smoothed = plot._smoothed([2.0, float("nan"), 2.0, float("inf"), 2.0])
    assert smoothed == pytest.approx([2.0] * 5)
    assert np.isnan(plot._smoothed([float("nan"), 1.0])[0])


def test_each_decision_has_its_mark_at_its_step_and_trace():
    decided = [("UPDATE", 1, 5.0), ("KEEP", 11, 5.1), ("STOP", 21, 5.2), ("UPDATE", 1, 7.0)]
    lines = [
        {"layer": "ab"[index == 3], "decision": decision, "step": step, "trace": trace}
        for index, (decision, step, trace) in enumerate(decided)
    ]
    axes = Figure().subplots()
    plot._traces(axes, "thor", lines)
    drawn = {
        (line.get_marker(), *point) for line in axes.get_lines() if line.get_marker() != "None"
        for point in line.get_xydata().tolist()
    }  # fmt: skip
    assert drawn == {(plot.MARKS[decision][0], step, trace) for decision, step, trace in decided}
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["UPDATE", "KEEP", "STOP", "a", "b"]


def test_runs_of_different_tasks_are_not_compared(runs, tmp_path):
    other = train(tiny_settings(tmp_path, "momentum", epochs=1), console=quiet())
    with pytest.raises(UserError, match="metrics, test_accuracy of .*, test_error of .*: give runs of one task"):
        compare.main([str(runs[0].folder), str(other.folder)])
