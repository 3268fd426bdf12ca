"""Adam beside the eigenbases: the bound of its step, and its state for the weights outside captured layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter

from thor.runtime.parameters import int_parameter, parameter


def largest_step(beta1, beta2):
    """The largest |first| / sqrt(second) that Adam can make in one basis; infinite if beta1^2 is not below beta2.

    The running averages have the weights a_k = (1 - beta1) beta1^k and b_k = (1 - beta2) beta2^k. By Cauchy and
    Schwarz, (sum a_k g_k)^2 <= (sum a_k^2 / b_k) (sum b_k g_k^2).
    """
    ratio = beta1 * beta1 / beta2 if beta2 > 0 else 1.0
    if ratio >= 1.0:
        return float("inf")
    return (1.0 - beta1) / ((1.0 - beta2) * (1.0 - ratio)) ** 0.5


class AdamMoments:
    """The count of Adam's steps, and the moments of the weights that no captured layer has.

    Attributes:
        steps: steps done, int32 [1]; compiled graphs count it.
        first: running averages of the gradients, float32.
        second: running averages of their squares.
    """

    def __init__(self, weights: Sequence[Parameter]):
        self.steps = int_parameter("adam_steps", 0)
        zeros = [np.zeros(weight.shape, np.float32) for weight in weights]
        self.first = [parameter(f"{w.name}.first_moment", z) for w, z in zip(weights, zeros, strict=True)]
        self.second = [parameter(f"{w.name}.second_moment", z) for w, z in zip(weights, zeros, strict=True)]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All Parameters, for checkpoints."""
        return (self.steps, *self.first, *self.second)
