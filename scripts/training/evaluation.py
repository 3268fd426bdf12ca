"""Evaluation of a network on the test set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from numpy.typing import NDArray

from first_order.compiled import CompiledFunction
from scripts.data.source import Source
from scripts.settings.train_settings import TrainSettings
from scripts.training.job_ranks import Ranks
from thor.runtime.errors import UserError

TOP = 5
SUMS = ("loss", "accuracy", "top5", "error")  # quantities that are summed over examples


@dataclass(frozen=True)
class Scores:
    """Results of an evaluation; higher is better for accuracies, lower for the others.

    Attributes:
        loss: Mean loss per example (text: per predicted word).
        values: `accuracy` and, with more than five classes, `top5`; or `error`, the squared error per image (summed
            over its pixels).
        count: Number of examples (words) that count.
    """

    loss: float
    values: dict[str, float]
    count: int

    @property
    def metric(self) -> tuple[str, float]:
        """Name and value of the main metric, the first of `values`."""
        return next(iter(self.values.items()))

    def named(self) -> dict[str, float]:
        """All values under their names in the metrics file."""
        return {"test_loss": self.loss, **{f"test_{name}": value for name, value in self.values.items()}}

    def better_than(self, other: float | None) -> bool:
        """True if the metric is finite and better than ``other``; any finite metric is better than None or NaN."""
        name, value = self.metric
        if not math.isfinite(value) or other is None or not math.isfinite(other):
            return math.isfinite(value)
        return value < other if name == "error" else value > other


def places_of(scores: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
    """Place of each example's label among the classes in order of score: the number of classes before it.

    Classes with a higher score come before the label. Earlier classes with an equal score do too, but are counted only
    if fewer than five classes have a higher score. NaN scores come before all others; a label whose score is NaN has
    place C. Comparing is faster than sorting.

    Args:
        scores: Scores of the classes [N, C].
        labels: The right class of each example [N].

    Returns:
        Places [N]: 0 where the label is the ``argmax``, below 5 where it is among the five highest scores.
    """
    own = np.take_along_axis(scores, labels[:, None], axis=-1)
    places = np.count_nonzero(~(scores <= own), axis=-1)
    hits = np.flatnonzero(places < TOP)  # ties are counted only for these few
    earlier = np.arange(scores.shape[-1]) < labels[hits, None]
    places[hits] += np.count_nonzero((scores[hits] == own[hits]) & earlier, axis=-1)
    return places


class Evaluator:
    """Computes test loss, and accuracy (classification, predicted words) or squared error per image (reconstruction).

    The forward pass is compiled. Examples with labels below 0 (padding, unreadable images) do not count; for a
    reconstruction, whose loss has no labels, they are removed from the batch. Each rank of a job evaluates a part of
    the test set, and the sums are added over the ranks.
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
        self._forward = CompiledFunction(self._outputs()) if settings.mode == "graph" else self._outputs()

    def _outputs(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """The function (*inputs, targets) -> (outputs, loss) to compile."""
        network, loss = self._network, self._loss

        def outputs(*batch: Tensor) -> tuple[Tensor, Tensor]:
            result = network(*batch[:-1])
            return result, loss(result, batch[-1])

        return outputs

    def __call__(self, alive: Callable[[], None] = lambda: None) -> Scores:
        """Evaluate on the complete source; ``alive`` is called once per batch, for heartbeats."""
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
        """Count and sums over all batches and ranks; a rank with only padding gets the names of the sums here."""
        count = sum(count for count, _ in batches)
        sums = {name: sum(s[name] for _, s in batches) for name in SUMS if batches and name in batches[0][1]}
        if self._ranks.count == 1:
            return count, sums
        totals = self._ranks.total([count, *[sums.get(name, 0.0) for name in SUMS], *[name in sums for name in SUMS]])
        values, known = totals[1 : 1 + len(SUMS)], totals[1 + len(SUMS) :]
        return int(totals[0]), {name: float(values[i]) for i, name in enumerate(SUMS) if known[i]}

    def _batches(self, alive: Callable[[], None]) -> Iterator[tuple[int, dict[str, float]]]:
        """For each batch, yield the number of examples that count, and the sums of loss and metrics over them."""
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
        """Sums of loss, top-1 hits and top-5 hits."""
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
        """Pixels of a reconstruction, from 0 to 1: the sigmoid of the outputs if they are logits."""
        return 1.0 / (1.0 + np.exp(-outputs)) if self._sigmoid else outputs
