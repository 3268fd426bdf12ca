"""What every data set offers to a training loop, and the order in which examples are seen.

The order is a pure function of seed and epoch, and a batch of its number in the epoch: nothing is carried from one
batch to the next, so that training goes on in the middle of an epoch exactly as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thor.runtime.errors import UserError

# Label of what is no example (padding, an unreadable image, a word that is not to be predicted). It is the default
# `ignore_index` of nn.CrossEntropyLoss.
IGNORED = -100

NOTHING = -1  # stands for an example where the last batches of an evaluation are not full

# Streams of random numbers, apart from each other.
ORDER, AUGMENTATION, MASKING = 0, 1, 2


class Source(Protocol):
    """A data set, cut into batches for one rank."""

    def __len__(self) -> int:
        """Batches an epoch: the same number on every rank."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[NDArray[Any], ...]]:
        """The batches of an epoch from number `start` on: inputs of the network, and labels last.

        All batches have the same shapes. Each depends on the source's settings, `epoch` and its number alone.
        """


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which examples are in which batch of which rank.

    Training: in each epoch another permutation of all examples, cut into global batches of `ranks * batch_size`; a
    rank takes its part of each. What is left over at the end is dropped, so that all ranks make equally many steps.
    Evaluation: all examples once, as they are stored; the last batches are filled with NOTHING.

    Attributes:
        count: Examples of the set.
        batch_size: Examples in a batch of one rank.
        seed: Decides the permutations, with the epoch.
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
        """Batches an epoch."""
        whole, rest = divmod(self.count, self.batch_size * self.ranks)
        return whole if self.training or not rest else whole + 1

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """The order of all examples in an epoch, the same on every rank."""
        if not self.training:
            return np.arange(self.count)
        return generator(self.seed, epoch, ORDER).permutation(self.count)

    def batches(self, epoch: int, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """Numbers of the examples in this rank's batches of an epoch, [batch_size] each."""
        order = self.permutation(epoch)
        for number in range(start, len(self)):
            first = (number * self.ranks + self.rank) * self.batch_size
            chosen = order[first : first + self.batch_size]
            yield np.pad(chosen, (0, self.batch_size - len(chosen)), constant_values=NOTHING)


def generator(seed: int, epoch: int, stream: int, *example: int) -> np.random.Generator:
    """Random numbers that depend on these alone.

    A source uses a stream either with or without `example`: to NumPy, [seed, epoch, stream] and
    [seed, epoch, stream, 0] are the same key.
    """
    return np.random.default_rng([seed, epoch, stream, *example])
