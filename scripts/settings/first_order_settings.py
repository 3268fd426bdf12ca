"""The settings of the first-order optimizers."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from scripts.settings.schedule_settings import NamedSchedule, Schedule
from scripts.settings.types import Count, NonNegative, Positive, Settings, Share


def _patterns(patterns: list[str]) -> list[str]:
    """Refuse what is no regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return patterns


class MomentumSettings(Settings):
    """Hyper-parameters of first_order.Momentum; momentum is its alpha.

    Attributes:
        momentum: Share of the velocity that each step keeps.
        mode: Standard or Nesterov momentum.
    """

    learning_rate: Positive = 0.05
    schedule: NamedSchedule = Schedule()
    momentum: Share = 0.9
    mode: Literal["standard", "nesterov"] = "standard"
    weight_decay: NonNegative = 0.0


class AdamSettings(Settings):
    """Hyper-parameters of first_order.Adam.

    Attributes:
        beta1: Decay of the running average of the gradients.
        beta2: Decay of the running average of the squared gradients.
        epsilon: Added to the root of the average of squares.
        use_nesterov: Use Nesterov momentum.
    """

    learning_rate: Positive = 0.001
    schedule: NamedSchedule = Schedule()
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    use_nesterov: bool = False
    weight_decay: NonNegative = 0.0


class AdafactorSettings(Settings):
    """Hyper-parameters of first_order.Adafactor, whose learning rate is relative to the size of the weights.

    Attributes:
        beta2_decay: Exponent of the step in the decay of the average of squares; nearer to 0 forgets faster.
        eps1: Lower bound on the averages that the gradient is divided by; null for the type's machine epsilon.
        eps2: Lower bound on the size of the weights that scales the learning rate.
        d: Bound on the root mean square of an update, before the learning rate.
    """

    learning_rate: Positive = 0.01
    schedule: NamedSchedule = Schedule()
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    eps1: NonNegative | None = None
    eps2: NonNegative = 1e-3
    d: Annotated[float, Field(ge=1)] = 1.0
    weight_decay: NonNegative = 0.0


class MuonSettings(Settings):
    """Hyper-parameters of first_order.Muon: of Muon for hidden matrices, and of AdamW for the other weights.

    Attributes:
        momentum: Decay of the running average of the gradients of Muon's weights.
        nesterov: Look one step ahead.
        ns_steps: Steps of the Newton-Schulz iteration.
        ns_dtype: Type of that iteration; `bfloat16` rounds as PyTorch does.
        adjust_lr_fn: How the learning rate depends on a matrix of R x C: `match_rms_adamw` multiplies it by
            0.2 sqrt(max(R, C)), so that one learning rate serves Muon and AdamW; `original` by sqrt(max(1, R / C)).
        flatten: Whether Muon moves weights of more than two axes too, as matrices of the first axis by all others.
        adamw: Patterns of the names of weights of two axes or more that AdamW moves, besides all embeddings; None for
            the last such weight of the network, its output layer, or the table of an embedding that it takes.
        adamw_learning_rate: Learning rate of AdamW's weights at its highest; None for learning_rate.
        adamw_beta1: AdamW's decay of the running average of the gradients.
        adamw_beta2: AdamW's decay of the running average of the squared gradients.
        adamw_epsilon: AdamW's term that is added to the root of the average of squares.
    """

    learning_rate: Positive = 0.003
    schedule: NamedSchedule = Schedule()
    momentum: Share = 0.95
    nesterov: bool = True
    ns_steps: Annotated[int, Field(ge=1, lt=100)] = 5
    ns_dtype: Literal["float32", "bfloat16"] = "float32"
    adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    flatten: bool = True
    adamw: Annotated[list[str], AfterValidator(_patterns)] | None = None
    adamw_learning_rate: Positive | None = None
    adamw_beta1: Share = 0.9
    adamw_beta2: Share = 0.95
    adamw_epsilon: Positive = 1e-10
    weight_decay: NonNegative = 0.0


class SoapSettings(Settings):
    """Hyper-parameters of first_order.SOAP.

    Attributes:
        beta1: Decay of the running average of the gradients.
        beta2: Decay of the running average of the squared gradients.
        shampoo_beta: Decay of Shampoo's matrices; None for beta2.
        epsilon: Added to the root of the average of squares.
        precondition_frequency: Updates between two renewals of the eigenbases.
        max_precond_dim: Longest axis of a weight that has an eigenbasis.
        merge_dims: Merge neighbouring axes of a weight while their product is at most max_precond_dim.
        precondition_1d: Rotate weights of one axis too.
        normalize_grads: Divide the step of each weight by its root mean square.
    """

    learning_rate: Positive = 0.003
    schedule: NamedSchedule = Schedule()
    beta1: Share = 0.95
    beta2: Share = 0.95
    shampoo_beta: Share | None = None
    epsilon: Positive = 1e-8
    precondition_frequency: Count = 10
    max_precond_dim: Count = 2048
    merge_dims: bool = False
    precondition_1d: bool = False
    normalize_grads: bool = False
    weight_decay: NonNegative = 0.0
