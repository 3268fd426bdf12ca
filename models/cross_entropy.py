"""Cross-entropy by two fused operators, instead of the many broadcasting ones of nn.CrossEntropyLoss."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

IGNORED = -100  # the label of rows that do not count, as in nn.CrossEntropyLoss


class CrossEntropy(nn.Cell):
    """Mean of -log softmax(scores)[label] over the labels that count, for scores [N, C] and labels [N], int32.

    The result equals ``nn.CrossEntropyLoss()`` up to rounding. On a CPU, the operators of ``nn.CrossEntropyLoss``
    broadcast a column against the scores, and each of them keeps two 8-byte indices per score as long as its graph
    exists (docs/dev/performance-log.md).
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.log_softmax, self.likelihood = ops.LogSoftmax(-1), ops.NLLLoss("mean", IGNORED)
        self.cast, self.ones = ops.Cast(), ops.Ones()

    def construct(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss, float32."""
        weights = self.ones((scores.shape[-1],), ms.float32)  # one per class
        return self.likelihood(self.log_softmax(self.cast(scores, ms.float32)), labels, weights)[0]
