"""What a training step asks of an optimizer, answered for any ``nn.Optimizer`` beside :class:`thor.THOR`."""

from __future__ import annotations

from typing import Any

from mindspore import nn

from first_order.cells import set_unregistered
from first_order.checks import check_int, number
from thor.distributed.ranks import ranks_of_context
from thor.optimizer_state import StepCounts
from thor.settings import loss_scale as scales


class PlainOptimizer(nn.Cell):
    """An ``nn.Optimizer`` with loss scale and counts of steps; it captures no layer and never gathers.

    Args:
        net: the network that it trains.
        inner: the optimizer.
        loss_scale: number, :class:`thor.DynamicLossScale` or a ``mindspore.amp`` scaler.
        max_bad_steps: consecutive steps that are not finite, all skipped, after which training stops with an error.
        clip_norm: limit of the norm of all gradients together; None for no limit.
    """

    def __init__(self, net: nn.Cell, inner: nn.Optimizer, loss_scale: Any, max_bad_steps: int, clip_norm: float | None):
        super().__init__(auto_prefix=False)
        self.clip_norm = None if clip_norm is None else number("clip_norm", clip_norm, 0.0, open_low=True)
        initial, self.scale_rule = scales.read(loss_scale)
        if inner.loss_scale != 1.0:
            raise ValueError(
                f"{type(inner).__name__} must have a loss_scale of 1, for a step hands it unscaled gradients, but has "
                f"{inner.loss_scale}: give it to TrainStep, loss_scale={inner.loss_scale}"
            )
        self.max_bad_steps = check_int("max_bad_steps", max_bad_steps, 1)
        self.own_state = StepCounts(initial)
        self.ranks = ranks_of_context(None)
        self.host_rate = None  # `inner` has a rate of its own
        set_unregistered(self, network=net, inner=inner)

    @property
    def scaled(self) -> bool:
        """True if the loss is, or will be, scaled."""
        return self.scale_rule is not None or self.own_state.loss_scale != 1.0

    def finished(self, finite: bool) -> bool:
        """Count the step and adjust the loss scale; returns True if ``max_bad_steps`` in a row were not finite."""
        return self.own_state.finished(finite, self.scale_rule, self.max_bad_steps)
