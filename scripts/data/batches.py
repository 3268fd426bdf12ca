"""Batches of images that are all in memory: a `Source` of arrays, shifted and mirrored for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts.data.source import AUGMENTATION, IGNORED, PADDING, Order, generator

Channels = float | Sequence[float]  # one value for all channels, or one per channel


class Split(NamedTuple):
    """Images [count, H, W] or [count, C, H, W] and labels [count], as stored."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Cuts images and labels into batches.

    Attributes:
        images: As stored, 0 to 255: [count, H, W] or [count, C, H, W].
        labels: Class of each image.
        batch_size: Examples per batch.
        seed: Determines order and augmentation, together with the epoch.
        mean: Subtracted from pixels scaled to 0 to 1; one value, or one per channel.
        std: Divides the pixels afterwards; one value, or one per channel.
        crop: Largest shift of an image in each direction, in pixels; zeros fill the gap.
        flip: Mirrors each image left to right with probability 1/2.
        rank: The part of each global batch that this source yields; see `Order`.
        ranks: Parts of a global batch.
        training: False for evaluation: stored order, no augmentation, and the last batch is padded with the label
            IGNORED.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    batch_size: int
    seed: int = 0
    mean: Channels = 0.0
    std: Channels = 1.0
    crop: int = 0
    flip: bool = False
    rank: int = 0
    ranks: int = 1
    training: bool = True

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._order)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The order of all examples in an epoch."""
        return self._order.permutation(epoch)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
        """Yield the batches of an epoch from number `start` on: images [B, C, H, W] and labels [B]."""
        augments = self.training and (self.crop > 0 or self.flip)
        changes = self._changes(epoch) if augments else None
        for chosen in self._order.batches(epoch, start):
            images = self.images[chosen]
            if changes is not None:
                images = self._augmented(images, changes[chosen])
            labels = np.where(chosen == PADDING, IGNORED, self.labels[chosen].astype(np.int32))
            yield normalise(images, self.mean, self.std), labels.astype(np.int32)

    @property
    def _order(self) -> Order:
        return Order(
            count=len(self.labels),
            batch_size=self.batch_size,
            seed=self.seed,
            rank=self.rank,
            ranks=self.ranks,
            training=self.training,
        )

    def _changes(self, epoch: int) -> NDArray[np.int64]:
        """Row shift, column shift (0 to 2 * crop) and mirroring (0 or 1) of each example in an epoch, [count, 3]."""
        random = generator(self.seed, epoch, AUGMENTATION)
        shifts = random.integers(0, 2 * self.crop + 1, (len(self.labels), 2))
        mirrored = random.integers(0, 2, (len(self.labels), 1)) * int(self.flip)
        return np.concatenate([shifts, mirrored], axis=1)

    def _augmented(self, images: NDArray[np.uint8], changes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Images shifted and mirrored by their rows of `changes` [B, 3]."""
        height, width = images.shape[-2:]
        around = (self.crop, self.crop)
        padded = np.pad(images, ((0, 0),) * (images.ndim - 2) + (around, around))
        rows = (changes[:, 0, None] + np.arange(height))[:, :, None]
        columns = changes[:, 1, None] + np.arange(width)
        columns = np.where(changes[:, 2, None] == 1, columns[:, ::-1], columns)[:, None, :]
        example = np.arange(len(images))[:, None, None]
        if images.ndim == 3:
            return padded[example, rows, columns]
        return np.moveaxis(padded[example, :, rows, columns], -1, 1)


def normalise(images: NDArray[np.uint8], mean: Channels, std: Channels) -> NDArray[np.float32]:
    """Return (images / 255 - mean) / std as [count, C, H, W], of images [count, H, W] or [count, C, H, W], 0 to 255."""
    if images.ndim == 3:
        images = images[:, None]
    centre, spread = _per_channel(mean), _per_channel(std)
    scale, offset = (1.0 / (255.0 * spread)).astype(np.float32), (centre / spread).astype(np.float32)
    return images.astype(np.float32) * scale - offset


def _per_channel(value: Channels) -> NDArray[np.float64]:
    """A value per channel [C, 1, 1], or one for all channels [1, 1, 1]."""
    return np.asarray(value, np.float64).reshape(-1, 1, 1)
