"""Batches of encoded images, decoded as they are needed: a `Source` over a folder or over MindRecord files."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scripts.data import images
from scripts.data.batches import normalise
from scripts.data.images import UnreadableError
from scripts.data.source import AUGMENTATION, IGNORED, NOTHING, Order, generator
from thor.runtime.errors import UserError

LOOK_AHEAD = 3  # batches in the making while one is used
# A few bad files are skipped. More than so many in an epoch, and more than a tenth of what this rank is to read in it,
# mean that the set itself is not there.
FEW, TENTH = 20, 10

log = logging.getLogger(__name__)

Example = tuple[NDArray[np.uint8], int]


class Item(NamedTuple):
    """An image as stored: its file or its bytes, its class, and what messages call it."""

    content: Path | bytes
    label: int
    name: str


class Collection(Protocol):
    """Images that can be read in any order."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; a label is an index of it."""

    def __len__(self) -> int:
        """How many images there are."""

    def items(self, indices: Sequence[int]) -> Iterator[Item]:
        """The images of these numbers, in this order."""


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Cuts a collection into batches of images [B, 3, size, size] and labels [B].

    What is done to an image depends on seed, epoch and the image's number alone. An unreadable image is skipped,
    counted in `skipped` and logged once: in training the next readable one takes its place, in evaluation its label is
    IGNORED.

    Attributes:
        collection: The images.
        batch_size: Examples a batch of this rank.
        seed: Decides order and augmentation, with the epoch.
        rank: Which part of each global batch is cut; see `Order`.
        ranks: Parts of a global batch.
        training: False for evaluation: stored order, the middle of each image.
        size: Height and width of what the network is shown.
        augment: False shows the middle of each image in training too, always the same.
        strict: An unreadable image ends the run with an error.
        workers: Threads that decode; as many as there are processors unless given.
        skipped: Name of each unreadable image so far, and what was wrong with it.
    """

    collection: Collection
    batch_size: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    training: bool = True
    size: int = 224
    augment: bool = True
    strict: bool = False
    workers: int | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _skipped_now: set[str] = field(default_factory=set, init=False, repr=False, compare=False)  # in this epoch

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size must be at least 1, and is {self.size}")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers must be at least 1, and is {self.workers}")

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self._order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
        """Batches of an epoch from number `start` on, a few of them prepared ahead."""
        self._skipped_now.clear()
        batches = list(self._order.batches(epoch, start))
        wanted = [int(index) for batch in batches for index in batch if index != NOTHING]
        items = self.collection.items(wanted)
        waiting: deque[list[Future[Example]]] = deque()
        pool = ThreadPoolExecutor(self.workers or os.cpu_count() or 1, thread_name_prefix="decode")
        try:
            for batch in batches:
                waiting.append([pool.submit(self._example, epoch, int(i), self._item(items, i)) for i in batch])
                if len(waiting) > LOOK_AHEAD:
                    yield _stacked(waiting.popleft())
            while waiting:
                yield _stacked(waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    @property
    def _order(self) -> Order:
        return Order(
            count=len(self.collection),
            batch_size=self.batch_size,
            seed=self.seed,
            rank=self.rank,
            ranks=self.ranks,
            training=self.training,
        )

    def _item(self, items: Iterator[Item], index: int) -> Item | None:
        """The next item, or None where the batch is filled up."""
        return None if index == NOTHING else next(items)

    def _example(self, epoch: int, index: int, item: Item | None) -> Example:
        """What the network is shown of an item, and its label."""
        if item is None:
            return self._blank()
        try:
            return self._view(epoch, index, item)
        except UnreadableError as error:
            self._skip(item, error)
        return self._substitute(epoch, index) if self.training else self._blank()

    def _view(self, epoch: int, index: int, item: Item) -> Example:
        """The item's view, and its label."""
        image = images.decode(item.content)
        if not (self.training and self.augment):
            return images.evaluation_view(image, self.size), item.label
        return images.training_view(image, self.size, generator(self.seed, epoch, AUGMENTATION, index)), item.label

    def _blank(self) -> Example:
        """No example."""
        return np.zeros((self.size, self.size, 3), np.uint8), IGNORED

    def _skip(self, item: Item, error: UnreadableError) -> None:
        """Count an unreadable image, or end the run."""
        if self.strict:
            raise UserError(f"{item.name}: {error} (without 'strict' it would be skipped)")
        with self._lock:
            new = item.name not in self.skipped
            self.skipped[item.name] = str(error)
            self._skipped_now.add(item.name)
            skipped, count = len(self._skipped_now), len(self.collection)
        if new:
            log.warning("skipped %s: %s", item.name, error)
        share = -(-count // self.ranks)
        if skipped > min(max(FEW, share // TENTH), count - 1):
            of = share if skipped <= share else count  # with those that were to take a bad one's place
            raise UserError(f"{skipped} of {of} images cannot be read, such as {item.name}: {error}")

    def _substitute(self, epoch: int, index: int) -> Example:
        """The next readable image after an unreadable one, as stored; mostly of the same class.

        There is one: `_skip` ends the run before all are found unreadable.
        """
        while True:
            index = (index + 1) % len(self.collection)
            (item,) = self.collection.items([index])
            try:
                return self._view(epoch, index, item)
            except UnreadableError as error:
                self._skip(item, error)


def _stacked(examples: list[Future[Example]]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """A batch for the network, from its examples in the making."""
    views, labels = zip(*(example.result() for example in examples), strict=True)
    pixels = np.ascontiguousarray(np.stack(views).transpose(0, 3, 1, 2))  # twice as fast as normalising the view
    return normalise(pixels, images.MEAN, images.STD), np.array(labels, np.int32)
