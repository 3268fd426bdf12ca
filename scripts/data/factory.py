"""Builds the two sources of batches that a configuration asks for: one to train on, one to evaluate on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from scripts.data import cifar, fashion_mnist, fetch, imagenet_folder, imagenet_samples
from scripts.data.batches import Batches, Channels, Split
from scripts.data.image_source import Collection, ImageSource
from scripts.data.source import Source
from scripts.settings.train_settings import TrainSettings
from thor.runtime.errors import UserError

if TYPE_CHECKING:
    from scripts.data.wordpiece import Vocabulary  # imports `tokenizers`, which only text needs

EVALUATION_BATCH = 1000  # default for data sets in memory
# Published numbers of training images, for a dry run without the data. Text has no published size.
PUBLISHED_SIZES = {
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "imagenet": 1_281_167,
    "mindrecord": 1_281_167,  # ImageNet, converted
}


@dataclass(frozen=True, kw_only=True)
class Feeds:
    """The data of a run.

    Attributes:
        train: Batches to train on.
        test: Batches to evaluate on. The ranks together see every example once; padding has labels below 0.
        origin: Where the data are, for messages.
        network_options: Arguments for the network's factory that depend on the data.
        skipped: For each of the two parts, its number of images, and the unreadable ones that this process has met
            since it started, by index, with the reason of each.
        words: The vocabulary, if the data are text.
    """

    train: Source
    test: Source
    origin: str
    network_options: dict[str, Any] = field(default_factory=dict)
    skipped: Sequence[tuple[int, dict[int, str]]] = ()
    words: Vocabulary | None = None

    def unreadable(self) -> NDArray[np.float32]:
        """Marks of all images [n], the training images first: 1 for those of `skipped`, else 0."""
        marks = [np.zeros(count, np.float32) for count, _ in self.skipped]
        for part, (_, found) in zip(marks, self.skipped, strict=True):
            part[list(found)] = 1
        return np.concatenate(marks or [np.zeros(1, np.float32)])


def open_feeds(settings: TrainSettings, words: Vocabulary | None = None) -> Feeds:
    """Find the data set that a configuration names, and cut it into batches.

    Args:
        settings: The run's configuration.
        words: Vocabulary that encodes a text. A trained network needs the one that it was trained with; without it,
            a vocabulary is built from the training documents.
    """
    name = settings.data.name
    if name == "text":
        return _text(settings, words)
    if name in ("imagenet", "mindrecord", "imagenet_samples"):
        return _photographs(settings)
    return _in_memory(settings)


def _training(settings: TrainSettings) -> dict[str, Any]:
    """Arguments that every training source gets."""
    data = settings.data
    return {"batch_size": settings.share, "seed": settings.seed, "rank": data.rank, "ranks": data.ranks}


def _evaluation(settings: TrainSettings, default: int, examples: int) -> dict[str, Any]:
    """Arguments that every evaluation source gets; a batch is no larger than this rank's share of the examples."""
    data = settings.data
    size = max(1, min(settings.eval_batch_size or default, -(-examples // data.ranks)))
    return {"batch_size": size, "rank": data.rank, "ranks": data.ranks, "training": False}


def _in_memory(settings: TrainSettings) -> Feeds:
    """Open Fashion-MNIST or CIFAR."""
    data = settings.data
    load: Callable[[Path, str], Split]
    mean: Channels
    std: Channels
    if data.name == "fashion_mnist":
        folder = fashion_mnist.resolve(data.folder)
        load, mean, std = fashion_mnist.load, fashion_mnist.MEAN, fashion_mnist.STD
    else:
        kind = cifar.FORMATS[data.name]
        folder = cifar.resolve(data.name, data.folder)
        mean, std = kind.mean, kind.std

        def load(folder: Path, part: str) -> Split:
            return cifar.load(data.name, folder, part)

    if settings.reconstructs:  # the target of a reconstruction is the pixels in 0 to 1
        mean, std = 0.0, 1.0
    train, test = load(folder, "train"), load(folder, "test")
    labels = test.labels[: data.test_size]
    return Feeds(
        train=Batches(
            images=train.images[: data.train_size],
            labels=train.labels[: data.train_size],
            mean=mean,
            std=std,
            crop=data.crop,
            flip=data.flip,
            **_training(settings),
        ),
        test=Batches(
            images=test.images[: data.test_size],
            labels=labels,
            mean=mean,
            std=std,
            **_evaluation(settings, EVALUATION_BATCH, len(labels)),
        ),
        origin=str(folder),
    )


def _photographs(settings: TrainSettings) -> Feeds:
    """Open ImageNet, as a folder or as MindRecord, or the twenty sample photographs."""
    data = settings.data
    train, test, folder = _collections(settings)
    skipped: tuple[tuple[int, dict[int, str]], ...] = ((len(train), {}), (len(test), {}))
    shared: dict[str, Any] = {"size": data.size, "strict": data.strict, "workers": data.workers}
    return Feeds(
        train=ImageSource(
            collection=train, augment=data.augment, skipped=skipped[0][1], **shared, **_training(settings)
        ),
        test=ImageSource(
            collection=test,
            skipped=skipped[1][1],
            **shared,
            **_evaluation(settings, settings.share, len(test)),
        ),
        origin=str(folder),
        skipped=skipped,
    )


def _collections(settings: TrainSettings) -> tuple[Collection, Collection, Path]:
    """Return training images, validation images and their folder."""
    data = settings.data
    if data.name == "mindrecord":
        from scripts.data import mindrecord  # here, because MindSpore's data engine is slow to import

        if data.folder is None:
            raise UserError(
                "data.folder is needed with data.name = mindrecord: the OUT of  "
                "python -m scripts.data.mindrecord IMAGENET OUT"
            )
        folder = Path(data.folder).expanduser()
        return mindrecord.load(folder / "train"), mindrecord.load(folder / "val"), folder
    if data.name == "imagenet_samples":
        folder = Path(data.folder).expanduser() if data.folder else fetch.cache_folder("imagenet-samples")
        if not (folder / "val").is_dir():
            imagenet_samples.arrange(folder)
    else:
        folder = imagenet_folder.resolve(data.folder)
    return *imagenet_folder.load(folder), folder


def _text(settings: TrainSettings, words: Vocabulary | None) -> Feeds:
    """Open plain text; without `words`, a vocabulary is built from the training documents."""
    from scripts.data import austen, bible, characters, text, wordpiece

    data = settings.data
    corpus = {"austen": austen.resolve, "bible": bible.resolve}[data.corpus]
    folder = Path(data.folder).expanduser() if data.folder else corpus()
    documents, held_out = text.split(text.read(folder), data.held_out)
    if words is None and data.unit == "characters":
        words = characters.vocabulary(list(documents.values()))
    elif words is None:
        words = wordpiece.vocabulary(list(documents.values()), data.vocabulary, fetch.cache_folder("wordpiece"))
    train = text.sequences(documents, words, data.length)[: data.train_size]
    test = text.sequences(held_out, words, data.length)[: data.test_size]
    source = text.NextPieces if data.objective == "next" else text.MaskedText
    return Feeds(
        train=source(sequences=train, words=len(words), **_training(settings)),
        test=source(sequences=test, words=len(words), **_evaluation(settings, settings.share, len(test))),
        origin=str(folder),
        network_options={"vocab_size": len(words)},
        words=words,
    )


def classes_of(source: Source) -> int:
    """Number of classes (for text: word pieces) that a source's labels can name."""
    if isinstance(source, ImageSource):
        return len(source.collection.classes)
    return int(source.labels.max()) + 1 if isinstance(source, Batches) else int(cast(Any, source).words)
