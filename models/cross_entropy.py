"""Cross-entropy of scores and classes by two fused operators; nn.CrossEntropyLoss is a dozen broadcasting ones."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

IGNORED = -100  # the label of what does not count, as in nn.CrossEntropyLoss


class CrossEntropy(nn.Cell):
    """mean over labels that count of -log softmax(scores)[label], for scores [N, C] and labels [N], int32.

    ``nn.CrossEntropyLoss()`` to a rounding. On a CPU that one subtracts columns from the matrix of scores, and each of
    these operators holds two 8-byte indices of every score while its graph lives (MindSpore 2.10; docs/speed.md).
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.log_softmax, self.likelihood = ops.LogSoftmax(-1), ops.NLLLoss("mean", IGNORED)
        self.cast, self.ones = ops.Cast(), ops.Ones()

    def construct(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss, float32."""
        weights = self.ones((scores.shape[-1],), ms.float32)  # of the classes
        return self.likelihood(self.log_softmax(self.cast(scores, ms.float32)), labels, weights)[0]
