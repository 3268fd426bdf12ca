"""Small random weights, as BERT and vision transformers begin with."""

from __future__ import annotations

from mindspore import nn
from mindspore.common.initializer import TruncatedNormal

#: Standard deviation 0.02, truncated at two deviations; a and b are values, not multiples.
SMALL_NORMAL = TruncatedNormal(0.02, mean=0.0, a=-0.04, b=0.04)


def small_dense(inputs: int, outputs: int) -> nn.Dense:
    """A dense layer with small random weights and zero bias."""
    return nn.Dense(inputs, outputs, weight_init=SMALL_NORMAL, bias_init="zeros")
