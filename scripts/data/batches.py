"""Batches of images: their order and their augmentation are pure functions of seed, epoch and index.

Nothing is carried from one batch to the next, so that training goes on in the middle of an epoch exactly as if it
had never stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ORDER, _AUGMENTATION = 0, 1  # streams of random numbers, apart from each other


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Cuts images [count, 28, 28] and labels [count] into training batches.

    Attributes:
        images: As stored, 0 to 255.
        labels: Class of each image.
        batch_size: Examples a batch; what is left over at the end of an epoch is dropped.
        seed: Decides order and augmentation, with the epoch.
        mean: Subtracted from pixels in 0 to 1.
        std: Pixels are divided by it afterwards.
        crop: Images are shifted by up to so many pixels each way, zeros coming in.
        flip: Half of the images are mirrored left to right.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    batch_size: int
    seed: int = 0
    mean: float = 0.0
    std: float = 1.0
    crop: int = 0
    flip: bool = False

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self.labels) // self.batch_size

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The order of the examples in an epoch."""
        return _generator(self.seed, epoch, _ORDER).permutation(len(self.labels))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
        """Batches of an epoch from number `start` on: images [B, 1, 28, 28] and labels [B]."""
        order = self.order(epoch)
        changes = self._changes(epoch)
        for number in range(start, len(self)):
            chosen = order[number * self.batch_size : (number + 1) * self.batch_size]
            images = self._augmented(self.images[chosen], changes[chosen]) if self._augments else self.images[chosen]
            yield normalise(images, self.mean, self.std), self.labels[chosen].astype(np.int32)

    @property
    def _augments(self) -> bool:
        return self.crop > 0 or self.flip

    def _changes(self, epoch: int) -> NDArray[np.int64]:
        """Row shift, column shift and mirroring of each example in an epoch, [count, 3]."""
        generator = _generator(self.seed, epoch, _AUGMENTATION)
        shifts = generator.integers(0, 2 * self.crop + 1, (len(self.labels), 2))
        mirrored = generator.integers(0, 2, (len(self.labels), 1)) * int(self.flip)
        return np.concatenate([shifts, mirrored], axis=1)

    def _augmented(self, images: NDArray[np.uint8], changes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Images shifted and mirrored as their changes say."""
        _, height, width = images.shape
        padded = np.pad(images, ((0, 0), (self.crop, self.crop), (self.crop, self.crop)))
        rows = changes[:, 0, None] + np.arange(height)
        columns = changes[:, 1, None] + np.arange(width)
        columns = np.where(changes[:, 2, None] == 1, columns[:, ::-1], columns)
        return padded[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]


def normalise(images: NDArray[np.uint8], mean: float, std: float) -> NDArray[np.float32]:
    """Images [count, H, W] in 0 to 255 as [count, 1, H, W]: (pixel / 255 - mean) / std."""
    scale = np.float32(1.0 / (255.0 * std))
    offset = np.float32(mean / std)
    return (images.astype(np.float32) * scale - offset)[:, None]


def _generator(seed: int, epoch: int, stream: int) -> np.random.Generator:
    """Random numbers that depend on these three alone."""
    return np.random.default_rng([seed, epoch, stream])
