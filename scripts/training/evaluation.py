"""How good a network is on the test set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from numpy.typing import NDArray

from scripts.data.source import Source
from scripts.settings.train_settings import TrainSettings
from scripts.training.job_ranks import Ranks
from thor.runtime.errors import UserError

TOP = 5
SUMS = ("loss", "accuracy", "top5", "error")  # what is added up over examples


@dataclass(frozen=True)
class Scores:
    """What an evaluation found; higher is better for accuracies, lower for the others.

    Attributes:
        loss: Mean loss of an example (text: of a predicted word).
        values: `accuracy` and, with more than five classes, `top5`; or `error`, the squared error of an image.
        count: Examples (words) that were counted.
    """

    loss: float
    values: dict[str, float]
    count: int

    @property
    def metric(self) -> tuple[str, float]:
        """Name and value of what comes first."""
        return next(iter(self.values.items()))

    def named(self) -> dict[str, float]:
        """All values by the names that they have in the metrics file."""
        return {"test_loss": self.loss, **{f"test_{name}": value for name, value in self.values.items()}}

    def better_than(self, other: float | None) -> bool:
        """Whether the metric is a number, and better than another value of it."""
        name, value = self.metric
        if not math.isfinite(value) or other is None or not math.isfinite(other):
            return math.isfinite(value)
        return value < other if name == "error" else value > other


def places_of(scores: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
    """How many classes stand before each example's own: those of higher score, and of equal ones the earlier.

    Scores [N, C] and labels [N] to places [N]: 0 is ``argmax``'s, below 5 are hits among five, and from 5 on those of
    equal score are not looked at. A score that is no number stands before all others; an own one gets the place C.
    To compare takes a tenth of the time of sorting out the five highest, a third of an evaluation with 2000 words.
    """
    own = np.take_along_axis(scores, labels[:, None], axis=-1)
    places = np.count_nonzero(~(scores <= own), axis=-1)
    hits = np.flatnonzero(places < TOP)  # only of these, mostly few, is it asked which come before it at the same score
    earlier = np.arange(scores.shape[-1]) < labels[hits, None]
    places[hits] += np.count_nonzero((scores[hits] == own[hits]) & earlier, axis=-1)
    return places


class Evaluator:
    """Test loss, and accuracy (classification, predicted words) or squared error an image (reconstruction).

    One compiled forward pass. Labels below 0 (padding, unreadable images) do not count; of a reconstruction, whose
    loss knows no labels, padding is cut off before. The ranks of a job evaluate a part each, and add up.
    """

    def __init__(
        self, network: nn.Cell, loss: nn.Cell, source: Source, settings: TrainSettings, ranks: Ranks | None = None
    ) -> None:
        self._ranks = ranks or Ranks()
        if settings.data.ranks != self._ranks.count:
            raise UserError(
                f"data.ranks = {settings.data.ranks}: this process would evaluate a part only; leave data.ranks out"
            )
        self._network = network
        self._loss = loss
        self._source = source
        self._reconstructs = settings.reconstructs
        self._sigmoid = settings.loss == "binary_cross_entropy"
        self._forward = ms.jit(self._outputs()) if settings.mode == "graph" else self._outputs()

    def _outputs(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """A function (*inputs, targets) -> (outputs, loss), for the compiler."""
        network, loss = self._network, self._loss

        def outputs(*batch: Tensor) -> tuple[Tensor, Tensor]:
            result = network(*batch[:-1])
            return result, loss(result, batch[-1])

        return outputs

    def __call__(self, alive: Callable[[], None] = lambda: None) -> Scores:
        """Evaluate on the whole source; ``alive`` is called once a batch, for who waits for signs of life."""
        self._network.set_train(False)
        try:
            total, sums = self._over_ranks(list(self._batches(alive)))
        finally:
            self._network.set_train(True)
        if not total:
            raise UserError("nothing to evaluate on: no example of the test set can be read (the lines above say why)")
        means = {name: value / total for name, value in sums.items()}
        return Scores(means.pop("loss"), means, total)

    def _over_ranks(self, batches: list[tuple[int, dict[str, float]]]) -> tuple[int, dict[str, float]]:
        """How many examples count, and their sums; a rank whose part is all padding does not know which sums."""
        count = sum(count for count, _ in batches)
        sums = {name: sum(s[name] for _, s in batches) for name in SUMS if batches and name in batches[0][1]}
        if self._ranks.count == 1:
            return count, sums
        totals = self._ranks.total([count, *[sums.get(name, 0.0) for name in SUMS], *[name in sums for name in SUMS]])
        values, known = totals[1 : 1 + len(SUMS)], totals[1 + len(SUMS) :]
        return int(totals[0]), {name: float(values[i]) for i, name in enumerate(SUMS) if known[i]}

    def _batches(self, alive: Callable[[], None]) -> Iterator[tuple[int, dict[str, float]]]:
        """How many examples count in each batch, and the sums of loss and metrics over them."""
        for *inputs, labels in self._source.epoch(0):
            alive()
            counted = labels >= 0
            if not counted.any():
                continue
            if self._reconstructs:
                yield int(counted.sum()), self._reconstruction(inputs[0][counted])
            else:
                yield int(counted.sum()), self._classification(inputs, labels, counted)

    def _classification(self, inputs: list[Any], labels: NDArray[Any], counted: NDArray[Any]) -> dict[str, float]:
        """Sums of loss, hits, and hits among the five highest scores."""
        outputs, loss = self._forward(*[Tensor(part) for part in inputs], Tensor(labels.astype(np.int32)))
        scores, right = outputs.asnumpy(), labels[counted]
        places = places_of(scores if counted.all() else scores[counted], right)
        sums = {"loss": float(loss.asnumpy()) * len(right), "accuracy": float(np.sum(places == 0))}
        if scores.shape[-1] > TOP:
            sums["top5"] = float(np.sum(places < TOP))
        return sums

    def _reconstruction(self, images: NDArray[Any]) -> dict[str, float]:
        """Sums of loss and squared error."""
        inputs = Tensor(images)
        outputs, loss = self._forward(inputs, inputs)
        result = outputs.asnumpy()
        error = np.sum((self._pixels(result) - images.reshape(result.shape)) ** 2)
        return {"loss": float(loss.asnumpy()) * len(images), "error": float(error)}

    def _pixels(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """A reconstruction's pixels in 0 to 1."""
        return 1.0 / (1.0 + np.exp(-outputs)) if self._sigmoid else outputs
