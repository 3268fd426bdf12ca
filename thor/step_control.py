"""What decides for a training step: a THOR itself, or a :class:`PlainOptimizer` around any other optimizer."""

from __future__ import annotations

from typing import Any

from mindspore import nn

from thor.optimizer import THOR
from thor.plain_optimizer import PlainOptimizer
from thor.step.eigen_update import EigenUpdate
from thor.step.layer_update import Moving
from thor.step.update import PlainUpdate, Update

MAX_BAD_STEPS = 10


def step_control(
    net: nn.Cell, optimizer: Any, loss_scale: Any, max_bad_steps: int | None, clip_norm: float | None
) -> THOR | PlainOptimizer:
    """The optimizer if it is a THOR, which has these settings itself; else a :class:`PlainOptimizer` with them.

    Raises:
        TypeError: if ``optimizer`` is neither a THOR nor an ``nn.Optimizer``.
        ValueError: if a THOR was made for another network, or gets a setting that is its own.
    """
    if isinstance(optimizer, THOR):
        if optimizer.network is not net:
            raise ValueError("optimizer was made for another network: build THOR(net, ...) and TrainStep on one object")
        for name, value in (("loss_scale", loss_scale), ("max_bad_steps", max_bad_steps)):
            if value is not None:
                raise ValueError(f"{name} is THOR's own setting: give it to THOR({name}={value!r}), not to TrainStep")
        if clip_norm is not None:
            raise ValueError("clip_norm is for an nn.Optimizer: a THOR limits its steps by its own clip and clip_each")
        return optimizer
    if not isinstance(optimizer, nn.Optimizer):
        raise TypeError(
            f"optimizer must be a thor.THOR or an nn.Optimizer, but got {type(optimizer).__name__}"
            + (": optimizers of mindspore.mint and mindspore.experimental are none, take first_order's or nn's"
               if hasattr(optimizer, "param_groups") else "")
        )  # fmt: skip
    return PlainOptimizer(
        net,
        optimizer,
        1.0 if loss_scale is None else loss_scale,
        MAX_BAD_STEPS if max_bad_steps is None else max_bad_steps,
        clip_norm,
    )


def update_of(control: THOR | PlainOptimizer) -> Moving:
    """What moves the weights."""
    if isinstance(control, PlainOptimizer):
        return PlainUpdate(control.inner, control.clip_norm)
    options, ranks, layers = control.options, control.ranks, control.captured
    if options.adam is not None and control.moments is not None:
        adam = (options.adam.beta1, options.adam.beta2, options.adam.epsilon, options.adam.rate_factor)
        refreshes = control.own_state.refreshes
        return EigenUpdate(
            control.inner, layers, control.moments, refreshes, *adam, control.decays, options.clip_each, ranks
        )
    return Update(
        control.inner, layers, options.clip, control.decays, options.clip_each, ranks, graft=options.graft
    )  # fmt: skip
