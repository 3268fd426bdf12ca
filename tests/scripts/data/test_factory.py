"""Training with each kind of data set: it learns, it evaluates every example, and it resumes within an epoch."""

import io
import json
import re
import shutil

import numpy as np
import pytest
from mindspore import nn, ops
from rich.console import Console

from scripts import eval, export
from scripts.data import imagenet_folder, imagenet_samples, mindrecord
from scripts.data.factory import open_feeds
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.run_folder.vocabulary_file import load_vocabulary
from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import validate
from scripts.training.evaluation import Evaluator, Scores
from scripts.training.job_ranks import with_ranks
from scripts.training.loop import train
from scripts.training.networks import build_network
from tests.scripts.data.samples import write_cifar
from tests.scripts.training.test_loop import interrupt_at, last_tensors, quiet, without_times
from thor.runtime.errors import UserError

TEXTS = ("text", "next words", "next characters")


class Pooled(nn.Cell):
    """A photograph as 8 x 8 means, then one dense layer."""

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(8)
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(192, classes)

    def construct(self, x):
        return self.fc(self.flatten(self.pool(x)))


def settings_for(tmp_path, name: str, out: str = "run", **values) -> TrainSettings:
    """Five steps an epoch of the twenty sample images, or of a short text."""
    data = {"name": name}
    if name.startswith("cifar"):
        data |= {"folder": str(write_cifar(tmp_path / name, name)), "crop": 4, "flip": True}
    elif name == "mindrecord":
        folder = imagenet_samples.arrange(tmp_path / "imagenet")
        if not (tmp_path / "records").is_dir():
            for part, images in zip(("train", "val"), imagenet_folder.load(folder), strict=True):
                mindrecord.convert(images, tmp_path / "records" / part)
        data |= {"folder": str(tmp_path / "records"), "size": 32, "workers": 2}
    elif name in TEXTS:
        (tmp_path / "words.txt").write_text("one fine day the small cat sat on the red mat . " * 80)
        data |= {"folder": str(tmp_path / "words.txt"), "length": 16, "train_size": 20}
        data |= {"unit": "characters"} if name == "next characters" else {"vocabulary": 100}
    else:
        data |= {"folder": str(imagenet_samples.arrange(tmp_path / "imagenet")), "size": 32}
    network = {"network": "tests.scripts.data.test_factory:Pooled", "optimizer": "adam"}
    if name in TEXTS:
        sizes = {"hidden_size": 16, "layers": 1, "heads": 2, "dropout": 0.0, "max_positions": 16}
        network = {"network": "bert_tiny", "network_options": sizes, "optimizer": "momentum"}
    if name.startswith("next"):
        data |= {"name": "text", "objective": "next"}
        network |= {"network": "causal_lm"}
    base = {"epochs": 2, "batch_size": 4, "device": "CPU", "log_every": 1, "data": data, "out": str(tmp_path / out)}
    return validate({**network, "adam": {"learning_rate": 0.003}, **base, **values})


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagenet", "mindrecord", "imagenet_samples", *TEXTS])
def test_training_learns_from_every_set(tmp_path, name, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = train(settings_for(tmp_path, name, epochs=3), console=quiet())
    lines = read_metrics(run.folder)
    losses = [line["train_loss"] for line in lines if line["kind"] == "epoch"]
    assert losses[-1] < losses[0]
    assert run.steps_per_epoch == 5
    last = [line for line in lines if line["kind"] == "epoch"][-1]
    assert 0 <= last["test_accuracy"] <= last["test_top5"] <= 1


def test_resume_within_an_epoch_is_exact(tmp_path, monkeypatch):
    undisturbed = train(settings_for(tmp_path, "imagenet", "undisturbed"), console=quiet())
    settings = settings_for(tmp_path, "imagenet", "disturbed")
    with monkeypatch.context() as patch:
        interrupt_at(7, patch)
        assert not train(settings, console=quiet()).finished
    resumed = train(settings, resume="auto", console=quiet())
    expected, found = last_tensors(undisturbed.folder), last_tensors(resumed.folder)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    lines, undisturbed_lines = without_times(resumed.folder), without_times(undisturbed.folder)
    for line, other in zip(lines, undisturbed_lines, strict=True):
        # nn.CrossEntropyLoss sums over 1, 2 or 4 threads, whichever was faster lately: its last bits tell the call
        assert line == {**other, **{key: pytest.approx(other[key], rel=1e-6) for key in other if "loss" in key}}


def test_shards_are_parts_of_one_global_batch(tmp_path):
    settings = settings_for(tmp_path, "cifar10")
    whole = next(open_feeds(settings).train.epoch(1))
    feeds = [open_feeds(with_ranks(settings, rank, 2)) for rank in (0, 1)]
    for both, single in zip(zip(*[next(part.train.epoch(1)) for part in feeds], strict=True), whole, strict=True):
        assert np.array_equal(np.concatenate(both), single)
    tested = [labels for part in feeds for _, labels in part.test.epoch(0)]
    assert sum((labels >= 0).sum() for labels in tested) == 20, "each test image on one rank"


class Counting:
    """Three batches of scores: the input itself is the network's output."""

    def __init__(self, *batches):
        self.batches = [(np.eye(8, dtype=np.float32)[list(guess)] * 9, np.array(y, np.int32)) for guess, y in batches]

    def __len__(self):
        return len(self.batches)

    def epoch(self, epoch, start=0):
        yield from self.batches[start:]


class Same(nn.Cell):
    def construct(self, x):
        return ops.mul(x, 1.0)


def test_evaluation_counts_only_labels_from_zero_up():
    source = Counting(((0, 1, 2, 3), (0, 1, 7, -100)), ((4, 4, 4, 4), (-100,) * 4), ((5, 6, 0, 0), (5, 1, -100, -100)))
    scores = Evaluator(Same(), nn.CrossEntropyLoss(), source, validate({}))()
    assert scores.count == 5
    assert scores.values["accuracy"] == pytest.approx(3 / 5)
    expected = np.mean([np.log(np.exp(9) + 7) - (9 if right else 0) for right in (1, 1, 0, 1, 0)])
    assert scores.loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"name": "text", "size": 64}, "data: size has no meaning for text; it is for imagenet, mindrecord"),
        ({"name": "imagenet", "train_size": 5}, "data: train_size has no meaning for imagenet"),
        ({"objective": "next"}, "data: objective has no meaning for fashion_mnist; it is for text"),
        ({"corpus": "bible"}, "data: corpus has no meaning for fashion_mnist; it is for text"),
        ({"name": "text", "unit": "characters", "vocabulary": 500}, "vocabulary bounds the word pieces, and unit is"),
        ({"name": "text", "unit": "bytes"}, "data.unit = 'bytes': must be 'word_pieces' or 'characters'"),
        ({"ranks": 2, "rank": 2}, "data: rank must be 0 to 1 with ranks = 2, and is 2"),
        ({"name": "coco"}, "data.name = 'coco': must be 'fashion_mnist', 'cifar10'"),
    ],
)
def test_settings_of_another_set_are_refused(values, message):
    with pytest.raises(UserError) as caught:
        validate({"data": values})
    assert message in str(caught.value)


def test_reconstruction_of_photographs_is_refused():
    with pytest.raises(UserError, match="loss = squared_error reconstructs images in memory, and data.name is text"):
        validate({"loss": "squared_error", "data": {"name": "text"}})


def test_mindrecord_needs_a_folder():
    with pytest.raises(UserError, match=r"data\.folder is needed with data\.name = mindrecord"):
        open_feeds(validate({"data": {"name": "mindrecord"}}))


def test_unreadable_images_are_in_the_summary(tmp_path):
    folder = imagenet_samples.arrange(tmp_path / "broken")
    next((folder / "train").glob("*/*.JPEG")).write_bytes(b"no photograph")
    run = train(settings_for(tmp_path, "imagenet_samples", epochs=1, data={**_samples(folder)}), console=quiet())
    assert json.loads((run.folder / "summary.json").read_text())["unreadable_images"] == 1


def test_an_unreadable_image_that_several_ranks_meet_is_one(tmp_path):
    folder = imagenet_samples.arrange(tmp_path / "broken")
    next((folder / "train").glob("*/*.JPEG")).write_bytes(b"no photograph")
    marks = []
    for rank in range(2):
        data = {**_samples(folder), "rank": rank, "ranks": 2}
        feeds = open_feeds(settings_for(tmp_path, "imagenet_samples", epochs=4, data=data))
        for epoch in range(4):
            list(feeds.train.epoch(epoch))
        marks.append(feeds.unreadable())
    assert [each.sum() for each in marks] == [1, 1]
    assert (sum(marks) > 0).sum() == 1


@pytest.mark.parametrize("change", ["renamed", "fewer"])
def test_photographs_of_other_classes_are_refused(tmp_path, change):
    """The same number would be another class: an accuracy of nothing, and no word of it."""
    settings = settings_for(tmp_path, "imagenet_samples", epochs=1)
    run = train(settings, console=quiet())
    names = json.loads((run.folder / "classes.json").read_text())
    assert names == sorted(names) and len(names) == 19
    other = imagenet_samples.arrange(tmp_path / "other")
    for part in ("train", "val"):
        if change == "renamed":
            (other / part / names[3]).rename(other / part / "zebra")
        else:
            shutil.rmtree(other / part / names[3])
    words = f"classes, and not the 19 .* lacks {names[3]}" if change == "fewer" else f"has zebra and lacks {names[3]}"
    with pytest.raises(UserError, match=words):
        eval.main([str(run.folder), "--data.folder", str(other)])
    data = settings.data.model_copy(update={"folder": str(other)})
    with pytest.raises(UserError, match=words):
        train(settings.model_copy(update={"data": data}), resume=True, console=quiet())
    for spoilt in ("[", "7", '{"a": 1}', "[1, 2]"):
        (run.folder / "classes.json").write_text(spoilt)
        with pytest.raises(UserError, match=r"classes\.json: no list of names of classes"):
            eval.main([str(run.folder)])


def _samples(folder):
    return {"name": "imagenet_samples", "folder": str(folder), "size": 32}


def test_progress_shows_images_a_second(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    train(settings_for(tmp_path, "cifar10", epochs=1), console=console)
    shown = r"epoch 1/1 step \d+/\d+ loss \d\S* \d+ ms/step \d+ img/s .*left"
    assert re.search(shown, re.sub(r"\x1b\[[\d;]*m", "", console.file.getvalue()))


@pytest.mark.parametrize(
    "network, objective, message",
    [
        ("bert_tiny", "next", "network bert_tiny may look at the words that it is to predict; take causal_lm, or give"),
        ("causal_lm", "masked", "network causal_lm predicts the next word: set data.objective to next"),
    ],
)
def test_a_network_that_looks_ahead_is_not_asked_what_comes(network, objective, message):
    settings = validate({"network": network, "data": {"name": "text", "objective": objective}})
    with pytest.raises(UserError, match=message):
        build_network(settings, {"vocab_size": 50})


def test_a_run_of_words_keeps_its_vocabulary(tmp_path, monkeypatch, capsys):
    """Another text has other pieces under the same numbers: it is read with the run's, and nothing is trained on it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = settings_for(tmp_path, "next words", epochs=1)
    run = train(settings, console=quiet())
    words = load_vocabulary(run.folder)
    other = tmp_path / "other.txt"
    other.write_text("a tall ship came into view, and the old crew went up to it . " * 80)
    data = settings.data.model_copy(update={"folder": str(other)})
    assert open_feeds(settings.model_copy(update={"data": data})).words.text() != words.text()
    seen = []
    scores = Scores(1.0, {"accuracy": 0.5}, 1)
    monkeypatch.setattr(Evaluator, "__call__", lambda self: seen.append(self._source) or scores)
    assert eval.main([str(run.folder), "--data.folder", str(other)]) == 0
    text = words.decode(seen[0].sequences[0].tolist())
    assert text.startswith("[CLS] a tall [UNK] came into"), "with the first text's letters"
    capsys.readouterr()
    with pytest.raises(UserError, match=r"the text in .*other\.txt makes another vocabulary than that of the run"):
        train(settings.model_copy(update={"data": data}), resume=True, console=quiet())
    (run.folder / "vocabulary.json").unlink()
    with pytest.raises(UserError, match="has no vocabulary.json"):
        export.main([str(run.folder), "--out", str(tmp_path / "net.mindir")])
    train(settings, resume=True, console=quiet())
    assert load_vocabulary(run.folder).text() == words.text(), "of a run from before there was such a file"
    assert export.main([str(run.folder), "--out", str(tmp_path / "net.mindir")]) == 0


def test_a_network_of_next_words_is_exported_with_as_many_tokens_as_it_is_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = settings_for(tmp_path, "next words")  # 16 tokens of which it is shown 14
    tokens = next(open_feeds(settings).train.epoch(0))[0]
    assert (
        export.example_inputs(settings, build_network(settings, {"vocab_size": 100}), 4)[0].shape
        == tokens.shape
        == (4, 14)
    )
