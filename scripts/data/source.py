"""The protocol between data sets and training loops, and the order of examples.

The order is a pure function of seed and epoch, and a batch depends only on the order and its number in the epoch. No
state is carried from batch to batch, so a run that resumes in the middle of an epoch sees the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thor.runtime.errors import UserError

# Label of positions without a loss: padding, or an unreadable image. It is the default `ignore_index` of
# nn.CrossEntropyLoss.
IGNORED = -100

PADDING = -1  # stands for an index where the last batches of an evaluation are not full

# Independent streams of random numbers.
ORDER, AUGMENTATION, MASKING = 0, 1, 2


class Source(Protocol):
    """A data set, cut into batches for one rank."""

    def __len__(self) -> int:
        """Batches per epoch: the same number on every rank."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[NDArray[Any], ...]]:
        """Yield the batches of an epoch from number `start` on: the network's inputs, then the labels.

        All batches have the same shapes. A batch depends only on the source's settings, `epoch` and its number.
        """


@dataclass(frozen=True, kw_only=True)
class Order:
    """Assigns examples to the batches of each rank.

    Training: each epoch has its own permutation of all examples. It is cut into global batches of `ranks * batch_size`,
    and each rank takes its part of each. The remainder is dropped, so that all ranks make equally many steps.
    Evaluation: all examples once, in stored order; the last batches are padded with the index PADDING.

    Attributes:
        count: Number of examples.
        batch_size: Examples in a batch of one rank.
        seed: Determines the permutations, together with the epoch.
        rank: This process, 0 to ranks - 1.
        ranks: Processes that share the set.
        training: False for evaluation.
    """

    count: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    training: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size must be at least 1, and is {self.batch_size}")
        if self.ranks < 1:
            raise UserError(f"ranks must be at least 1, and is {self.ranks}")
        if not 0 <= self.rank < self.ranks:
            raise UserError(f"rank must be 0 to {self.ranks - 1} with {self.ranks} ranks, and is {self.rank}")

    def __len__(self) -> int:
        """Batches per epoch."""
        whole, rest = divmod(self.count, self.batch_size * self.ranks)
        return whole if self.training or not rest else whole + 1

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """The order of all examples in an epoch, the same on every rank."""
        if not self.training:
            return np.arange(self.count)
        return generator(self.seed, epoch, ORDER).permutation(self.count)

    def batches(self, epoch: int, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """Yield the indices of the examples in this rank's batches of an epoch, [batch_size] each."""
        order = self.permutation(epoch)
        for number in range(start, len(self)):
            first = (number * self.ranks + self.rank) * self.batch_size
            chosen = order[first : first + self.batch_size]
            yield np.pad(chosen, (0, self.batch_size - len(chosen)), constant_values=PADDING)


def generator(seed: int, epoch: int, stream: int, *example: int) -> np.random.Generator:
    """A random generator that depends only on these numbers.

    A source must use a stream either always or never with `example`: for NumPy, the keys [seed, epoch, stream] and
    [seed, epoch, stream, 0] are the same.
    """
    return np.random.default_rng([seed, epoch, stream, *example])
