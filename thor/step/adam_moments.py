"""Adam's update rule beside the eigenbases: the step from the moments, and the state of all weights outside them."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ops

from thor.runtime.parameters import int_parameter, parameter


def moments_after(gradient, first, second, beta1, beta2):
    """Running averages of the gradient and of its square after a step."""
    return beta1 * first + (1.0 - beta1) * gradient, beta2 * second + (1.0 - beta2) * (gradient * gradient)


def adam_direction(first, second, correction, epsilon):
    """Correction * first / (sqrt(second) + epsilon), as the operators of :mod:`first_order.adam` compute it."""
    return correction * (first / (ops.sqrt(second) + epsilon))


def largest_step(beta1, beta2):
    """The largest |first| / sqrt(second) that Adam can make in one basis; infinite if beta1^2 is not below beta2.

    The running averages have the weights a_k = (1 - beta1) beta1^k and b_k = (1 - beta2) beta2^k. By Cauchy and
    Schwarz, (sum a_k g_k)^2 <= (sum a_k^2 / b_k) (sum b_k g_k^2).
    """
    ratio = beta1 * beta1 / beta2 if beta2 > 0 else 1.0
    if ratio >= 1.0:
        return float("inf")
    return (1.0 - beta1) / ((1.0 - beta2) * (1.0 - ratio)) ** 0.5


def bias_correction(steps, beta1, beta2):
    """sqrt(1 - beta2^t) / (1 - beta1^t) for the step t, counted from 1, in float32."""
    t = ops.cast(steps, ms.float32)
    return ops.sqrt(1.0 - ops.pow(beta2, t)) / (1.0 - ops.pow(beta1, t))


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
