"""Moving averages of normalisation layers, restored after a forward pass that was not finite."""

from __future__ import annotations

from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

#: Forward passes from one copy to the next: steps, or micro-batches with ``accumulate``. An average with the usual
#: momentum 0.9 has forgotten its value after so many.
EVERY = 100
#: What layers of ``nn`` and of ``mint.nn`` call their averages.
NAMES = ("moving_mean", "moving_variance", "running_mean", "running_var")


class MovingAverages:
    """The moving averages of a network's normalisation layers, with copies from an earlier step.

    Without the copies, one non-finite batch would spoil them for good: BatchNorm's kernel updates them in the forward
    pass, before the finite check. The network would train on, but could not be evaluated any more.

    Attributes:
        averages: the averages.
        copies: one of each, in the same order; no checkpoint has them.
    """

    def __init__(self, net: nn.Cell):
        cells = [cell for _, cell in net.cells_and_names()]
        found = [getattr(cell, name, None) for cell in cells for name in NAMES]
        self.averages = ParameterTuple([each for each in found if isinstance(each, Parameter)])
        self.copies = ParameterTuple(
            [
                Parameter(Tensor(p.asnumpy().copy()), f"copy{index}.{p.name}", requires_grad=False)
                for index, p in enumerate(self.averages)
            ]
        )
        self._age = 0

    def before_step(self) -> None:
        """Copy the averages every ``EVERY`` calls."""
        if self._age % EVERY == 0:
            for average, copy in zip(self.averages, self.copies, strict=True):
                # an earlier micro-batch may have spoilt an average
                ops.assign(copy, average if self._age == 0 else mended(average, copy))
        self._age += 1

    def forget(self) -> None:
        """Drop the copies, because averages were loaded; the next step makes new copies."""
        self._age = 0

    def mend(self) -> None:
        """Restore what is not finite of the averages from their copies."""
        for average, copy in zip(self.averages, self.copies, strict=True):
            ops.assign(average, mended(average, copy))


def mended(average: Tensor, copy: Tensor) -> Tensor:
    """An average, with the copy's value wherever it is not finite."""
    return ops.select(ops.isfinite(average), average, copy)
