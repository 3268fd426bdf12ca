"""What the first half of a step leaves to the second, in a loop of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindspore import Tensor


@dataclass(frozen=True)
class Differentiated:
    """What the first half of a step leaves to the second.

    Attributes:
        inputs: the batch.
        scale: the loss scale of the graphs, None where nothing is scaled.
        loss: the unscaled loss.
        finite: whether loss, gradients and statistics are finite.
        gradients: unscaled, in the order of the optimizer's weights.
        statistics: fresh statistics of the captured layers; None if none were due.
        aux: (further outputs,) with ``has_aux``.
    """

    inputs: tuple[Any, ...]
    scale: Tensor | None
    loss: Tensor
    finite: Tensor
    gradients: tuple[Tensor, ...]
    statistics: tuple[Tensor, ...] | None
    aux: tuple[Any, ...]
