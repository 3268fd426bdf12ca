"""The micro-batches of one step: which one comes next, and how much each counts."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn

from thor.runtime.parameters import int_parameter, read, write


class MicroBatches(nn.Cell):
    """Counts the micro-batches of a step and their examples, so that every example has equal weight.

    A micro-batch enters the sums with the weight (its examples) / (examples of the step's first micro-batch). The step
    divides the sums by the sum of these weights. Where all micro-batches have equal size, each weight is 1.

    Args:
        accumulate: number of micro-batches in a step.
    """

    def __init__(self, accumulate: int):
        super().__init__(auto_prefix=False)
        self.accumulate = accumulate
        self.micro_step = int_parameter("micro_step", 0)
        self.micro_steps = int_parameter("micro_steps", accumulate)
        self.first_examples = int_parameter("micro_first_examples", 0)
        self.all_examples = int_parameter("micro_examples", 0)
        self._shares: dict[float, Tensor] = {}

    @property
    def begins(self) -> bool:
        """Whether the next micro-batch is the first one of a step."""
        return not read(self.micro_step)

    def begin_anew(self) -> None:
        """Forget the micro-batches of a step that is not finished."""
        write(self.micro_step, 0)

    def begin(self) -> bool:
        """Prepare for the next micro-batch; True if it is the first one of a step, for which the sums must be zero."""
        if read(self.micro_steps) != self.accumulate:  # loaded sums are of a step with other micro-batches
            write(self.micro_steps, self.accumulate)
            self.begin_anew()
        return self.begins

    def weight(self, examples: int) -> Tensor | None:
        """The weight of the next micro-batch, which has so many examples; None for 1."""
        if self.begins:
            write(self.first_examples, examples)
            write(self.all_examples, 0)
        first = read(self.first_examples) or examples
        return None if examples == first else Tensor(np.float32(examples / first))

    def count(self, examples: int) -> bool:
        """Count a micro-batch of so many examples; True if it was the last one of a step."""
        done = read(self.micro_step) + 1
        write(self.micro_step, done % self.accumulate)
        write(self.all_examples, read(self.all_examples) + examples)
        return done == self.accumulate

    @property
    def share(self) -> Tensor:
        """1 / (sum of the weights) of a step all of whose micro-batches are counted."""
        value = read(self.first_examples) / max(1, read(self.all_examples))
        if value not in self._shares:
            self._shares = {value: Tensor(np.float32(value))}
        return self._shares[value]

    @property
    def examples(self) -> Tensor:
        """Examples of the step so far, by which the ranks of a job weigh their means."""
        return Tensor(np.float32(read(self.all_examples)))
