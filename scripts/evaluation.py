"""How good a network is on the test set."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from scripts.data.batches import Split, normalise
from scripts.settings import TrainSettings

BATCH = 1000


class Evaluator:
    """Test loss, and accuracy (classification) or squared error an image (reconstruction).

    One compiled forward pass, in batches of 1000.
    """

    def __init__(
        self, network: nn.Cell, loss: nn.Cell, data: Split, mean: float, std: float, settings: TrainSettings
    ) -> None:
        self._network = network
        self._loss = loss
        self._images = data.images[: settings.data.test_size]
        self._labels = data.labels[: settings.data.test_size]
        self._mean, self._std = mean, std
        self._reconstructs = settings.reconstructs
        self._sigmoid = settings.loss == "binary_cross_entropy"
        self._forward = ms.jit(self._outputs()) if settings.mode == "graph" else self._outputs()

    def _outputs(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """A function (inputs, targets) -> (outputs, loss), for the compiler."""
        network, loss = self._network, self._loss

        def outputs(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            result = network(inputs)
            return result, loss(result, targets)

        return outputs

    def __call__(self) -> tuple[float, str, float]:
        """(test loss, name of the metric, its value)."""
        self._network.set_train(False)
        try:
            sums = [self._batch(start) for start in range(0, len(self._labels), BATCH)]
        finally:
            self._network.set_train(True)
        loss, score = (float(total) / len(self._labels) for total in np.sum(sums, axis=0))
        return loss, "error" if self._reconstructs else "accuracy", score

    def _batch(self, start: int) -> tuple[float, float]:
        """Sums of loss and metric over the images of one batch."""
        images = normalise(self._images[start : start + BATCH], self._mean, self._std)
        labels = self._labels[start : start + BATCH].astype(np.int32)
        inputs = Tensor(images)
        outputs, loss = self._forward(inputs, inputs if self._reconstructs else Tensor(labels))
        result = outputs.asnumpy()
        if self._reconstructs:
            score = np.sum((self._pixels(result) - images.reshape(result.shape)) ** 2)
        else:
            score = np.sum(result.argmax(-1) == labels)
        return float(loss.asnumpy()) * len(labels), float(score)

    def _pixels(self, outputs: np.ndarray) -> np.ndarray:
        """A reconstruction's pixels in 0 to 1."""
        return 1.0 / (1.0 + np.exp(-outputs)) if self._sigmoid else outputs
