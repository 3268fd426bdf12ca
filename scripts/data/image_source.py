"""Batches of images that are decoded when needed: a `Source` over a folder or over MindRecord files."""

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
from scripts.data.source import AUGMENTATION, IGNORED, PADDING, Order, generator
from thor.runtime.errors import UserError

LOOK_AHEAD = 3  # batches that are prepared while one is used
# A few unreadable images are skipped. An epoch with more than FEW of them, and more than a tenth of this rank's images,
# ends the run: then the data set itself is broken or missing.
FEW, TENTH = 20, 10

log = logging.getLogger(__name__)

Example = tuple[NDArray[np.uint8], int]


class Item(NamedTuple):
    """An image as stored: its file or its bytes, its class, and its name in messages."""

    content: Path | bytes
    label: int
    name: str


class Collection(Protocol):
    """Images that can be read in any order."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; a label is an index into it."""

    def __len__(self) -> int:
        """Number of images."""

    def items(self, indices: Sequence[int]) -> Iterator[Item]:
        """Yield the images with these indices, in this order."""


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Cuts a collection into batches of images [B, 3, size, size] and labels [B].

    The augmentation of an image depends only on the seed, the epoch and the image's index. An unreadable image is
    skipped, recorded in `skipped` and logged once. In training, the next readable image takes its place; in evaluation,
    its label is IGNORED.

    Attributes:
        collection: The images.
        batch_size: Examples per batch of this rank.
        seed: Determines order and augmentation, together with the epoch.
        rank: The part of each global batch that this source yields; see `Order`.
        ranks: Parts of a global batch.
        training: False for evaluation: stored order, the centre of each image.
        size: Height and width of the network's input.
        augment: False takes the centre of each image in training too.
        strict: An unreadable image ends the run with an error.
        workers: Threads that decode; one per processor by default.
        skipped: Index of each unreadable image so far, and the reason.
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
    skipped: dict[int, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _skipped_now: set[int] = field(default_factory=set, init=False, repr=False, compare=False)  # in this epoch

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size must be at least 1, and is {self.size}")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers must be at least 1, and is {self.workers}")

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
        """Yield the batches of an epoch from number `start` on; LOOK_AHEAD batches are prepared in advance."""
        self._skipped_now.clear()
        batches = list(self._order.batches(epoch, start))
        wanted = [int(index) for batch in batches for index in batch if index != PADDING]
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
        """The next item, or None for padding."""
        return None if index == PADDING else next(items)

    def _example(self, epoch: int, index: int, item: Item | None) -> Example:
        """The view of an item and its label; of an unreadable image, its substitute or a blank example."""
        if item is None:
            return self._blank()
        try:
            return self._view(epoch, index, item)
        except UnreadableError as error:
            self._skip(index, item, error)
        return self._substitute(epoch, index) if self.training else self._blank()

    def _view(self, epoch: int, index: int, item: Item) -> Example:
        """The training or evaluation view of an item [size, size, 3], and its label."""
        image = images.decode(item.content)
        if not (self.training and self.augment):
            return images.evaluation_view(image, self.size), item.label
        return images.training_view(image, self.size, generator(self.seed, epoch, AUGMENTATION, index)), item.label

    def _blank(self) -> Example:
        """An all-zero image with the label IGNORED, for padding."""
        return np.zeros((self.size, self.size, 3), np.uint8), IGNORED

    def _skip(self, index: int, item: Item, error: UnreadableError) -> None:
        """Record an unreadable image; end the run if `strict` or if there are too many of them."""
        if self.strict:
            raise UserError(f"{item.name}: {error} (without 'strict' it would be skipped)")
        with self._lock:
            new = index not in self.skipped
            self.skipped[index] = str(error)
            self._skipped_now.add(index)
            skipped, count = len(self._skipped_now), len(self.collection)
        if new:
            log.warning("skipped %s: %s", item.name, error)
        share = -(-count // self.ranks)
        if skipped > min(max(FEW, share // TENTH), count - 1):
            of = share if skipped <= share else count  # more than the share: substitutes were unreadable too
            raise UserError(f"{skipped} of {of} images cannot be read, such as {item.name}: {error}")

    def _substitute(self, epoch: int, index: int) -> Example:
        """The next readable image in the collection after an unreadable one; it is mostly of the same class.

        The loop ends, because `_skip` ends the run before all images are found unreadable.
        """
        while True:
            index = (index + 1) % len(self.collection)
            (item,) = self.collection.items([index])
            try:
                return self._view(epoch, index, item)
            except UnreadableError as error:
                self._skip(index, item, error)


def _stacked(examples: list[Future[Example]]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Wait for the examples of a batch; return images [B, 3, size, size], normalised, and labels [B]."""
    views, labels = zip(*(example.result() for example in examples), strict=True)
    pixels = np.ascontiguousarray(np.stack(views).transpose(0, 3, 1, 2))  # `normalise` is slow on a transposed view
    return normalise(pixels, images.MEAN, images.STD), np.array(labels, np.int32)
