"""The inner optimizer, which moves the weights along THOR's directions: Momentum by default, or one of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any

import mindspore as ms
from mindspore import Parameter, nn, ops

import first_order
from first_order.base import decays_by_rule
from first_order.checks import below_1, number
from thor.settings.along import Along
from thor.settings.kinds import EIGENBASIS
from thor.settings.options import Options
from thor.settings.schedules import HostSchedule

DEFAULT_MOMENTUM = 0.9
#: Optimizers whose step is learning rate x direction, possibly with momentum. ``clip`` can bound only such a step.
ALONG_DIRECTION = (nn.Momentum, nn.SGD, first_order.Momentum)


def without_decays(groups: list[dict[str, Any]], default: float) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """Parameter groups without their weight decay, and the decay of each weight by its ``id``.

    They are for decoupled weight decay, which THOR applies instead of Momentum. As in nn.Optimizer, a group's
    ``weight_decay``, or else ``default``, applies to all its weights, whatever their names.
    """
    plain: list[dict[str, Any]] = []
    decays: dict[int, float] = {}
    for index, group in enumerate(groups):
        decay = number(f"weight_decay of params[{index}]", group.get("weight_decay", default), 0.0)
        decays |= {id(weight): decay for weight in group.get("params", ())}
        plain.append({key: value for key, value in group.items() if key != "weight_decay"})
    return plain, decays


def decays_by_name(weights: Iterable[Any], decay: float) -> dict[int, float]:
    """The decay of each weight by its ``id``, by nn.Optimizer's rule for weights outside groups (``decay_filter``).

    Weights whose names contain "beta" or "gamma" do not decay.
    """
    return {id(w): decay if decays_by_rule(w) else 0.0 for w in weights}


def decays_itself(inner: nn.Optimizer) -> bool:
    """Whether ``inner`` applies weight decay itself."""
    # Adafactor keeps its decay in its own groups, where nn.Optimizer does not see it
    own = inner.param_groups if isinstance(inner, first_order.Adafactor) else ()
    return bool(inner.exec_weight_decay) or any(group["weight_decay"] for group in own)


def check_inner(inner: Any, momentum: Any, options: Options, params: Any) -> None:
    """Raise TypeError if ``inner`` is no nn.Optimizer, ValueError for a setting that conflicts with it."""
    if not isinstance(inner, nn.Optimizer):
        raise TypeError(f"inner must be an nn.Optimizer over the network's weights, but got {type(inner).__name__}")
    name = type(inner).__name__
    if isinstance(inner, first_order.SOAP):
        raise ValueError(
            "inner must not be a SOAP, which estimates curvature of what it is given: of THOR's directions it would "
            "estimate nothing of use. Train by SOAP alone, TrainStep(net, loss_fn, SOAP(...)), or take first_order.Adam"
        )
    if momentum != DEFAULT_MOMENTUM:  # the default cannot be told from an omitted argument
        raise ValueError(
            f"momentum is the default Momentum's and means nothing beside inner, but got {momentum!r}: set it on {name}"
        )
    if params is not None:
        raise ValueError("params belongs to the default Momentum; give the groups to inner itself")
    if inner.loss_scale != 1.0:
        raise ValueError(
            f"inner must have a loss_scale of 1, for THOR's directions are unscaled already, but got {name} with "
            f"{inner.loss_scale}: give it to THOR, loss_scale={inner.loss_scale}"
        )
    if options.clip is not None and not isinstance(inner, ALONG_DIRECTION):
        raise ValueError(
            f"clip must be None with {name} inside, whose step is not learning rate x direction, but got "
            f"{options.clip}: leave it out, or let nn.Momentum, nn.SGD or first_order.Momentum move the weights"
        )
    if options.weight_decay and options.weight_decay_mode == "coupled":
        raise ValueError(
            f"weight_decay={options.weight_decay} is inner's to apply: set it on inner, "
            f"or use weight_decay_mode='decoupled'"
        )
    if options.weight_decay and decays_itself(inner):
        raise ValueError(
            f"inner must have no weight_decay of its own, nor in a group, where THOR's is decoupled, but got {name} "
            f"with one: leave it to weight_decay={options.weight_decay}, or leave THOR's out"
        )


def check_takes_rate(inner: nn.Optimizer, learning_rate: Any) -> None:
    """Raise ValueError if an optimizer does not move by the number that its ``learning_rate`` holds."""
    if inner.dynamic_lr or inner.is_group_lr:
        raise ValueError("inner has a learning-rate schedule or groups of its own: pass learning_rate=None")
    if getattr(inner, "relative_step", False) or isinstance(inner, nn.LARS):
        raise ValueError(
            f"learning_rate must be None with {type(inner).__name__} inside, which takes its rate elsewhere, but got "
            f"{learning_rate!r}: give the rate to it"
        )


def listed(group: dict[str, Any]) -> dict[str, Any]:
    """The parameter group with iterators turned into lists, so that its weights can be read more than once."""
    return {key: list(value) if isinstance(value, Iterator) else value for key, value in group.items()}


def default_inner(
    net: nn.Cell, initial: Any, momentum: Any, options: Options, params: Any
) -> tuple[nn.Optimizer, dict[int, float]]:
    """What moves the network's weights, or ``params``, and the decoupled decay of each weight by its ``id``.

    It is nn.Momentum, or :class:`thor.settings.along.Along` for the finished directions of eigenbases. The dictionary
    is empty where ``weight_decay_mode`` is "coupled": Momentum then applies the decay itself.
    """
    weights = net.trainable_params() if params is None else params
    if not isinstance(weights, Iterable):
        raise TypeError(f"params must be a list of Parameters or of groups, but got {params!r}")
    weights = list(weights)  # an iterator could be read only once
    if not weights and params is not None:
        raise ValueError("params must have at least one Parameter or group, but got none: leave it out for all weights")
    if not weights and not net.parameters_dict():
        raise ValueError(
            f"{type(net).__name__} has no Parameters: nothing to optimize. A layer must be an attribute of a Cell, or "
            f"lie in an nn.CellList or nn.CellDict: MindSpore does not see those in a Python list or dict"
        )
    if not weights:
        raise ValueError("net has no trainable weights: nothing to optimize")
    for index, item in enumerate(weights):
        if not isinstance(item, (Parameter, dict)):
            raise TypeError(
                f"params must be a list of Parameters or of groups, but params[{index}] is {item!r} of type "
                f"{type(item).__name__}"
            )
    weights = [listed(item) if isinstance(item, dict) else item for item in weights]
    keep = below_1("momentum", momentum)
    if options.weight_decay_mode == "coupled":
        return nn.Momentum(weights, initial, keep, options.weight_decay), {}
    decays: dict[int, float] = {}
    if all(isinstance(item, dict) for item in weights):
        weights, decays = without_decays(weights, options.weight_decay)
    in_basis = options.kind == EIGENBASIS
    default = Along(weights, initial) if in_basis else nn.Momentum(weights, initial, keep)
    return default, decays or decays_by_name(default.parameters, options.weight_decay)


def inner_optimizer(
    net: nn.Cell, inner: Any, learning_rate: Any, momentum: Any, options: Options, params: Any
) -> tuple[nn.Optimizer, HostSchedule | None, tuple[float, ...]]:
    """The optimizer that moves the weights, its learning-rate schedule on the host, and the decoupled weight decays.

    Without ``inner``, a number, a list, a Tensor or a MindSpore schedule as ``learning_rate`` goes to the default
    Momentum. A number for ``inner`` becomes its ``learning_rate``. A callable of the step becomes a host schedule,
    whose value is written into the optimizer's ``learning_rate`` at every step.

    Returns:
        ``(optimizer, schedule, decays)``. ``schedule`` is None where the optimizer has its own rate. ``decays`` has one
        number for each of ``optimizer.parameters``; all are 0 where ``weight_decay_mode`` is "coupled".
    """
    if isinstance(learning_rate, bool) or isinstance(learning_rate, str):
        raise TypeError(f"learning_rate must be a number or a schedule, but got {learning_rate!r}")
    is_schedule = callable(learning_rate) and not isinstance(learning_rate, (nn.Cell, ms.Tensor))
    schedule = HostSchedule("learning_rate", learning_rate, above=False) if is_schedule else None
    if isinstance(learning_rate, Real):
        learning_rate = number("learning_rate", learning_rate, 0.0)
    if options.kind == EIGENBASIS and momentum != DEFAULT_MOMENTUM:
        raise ValueError(
            f"momentum must be left out with precondition='eigenbasis', which has beta1, but got {momentum!r}"
        )
    if inner is None:
        if learning_rate is None:
            raise ValueError("learning_rate must be a number or a schedule where inner is None, but got None")
        initial = float(schedule(0)) if schedule else learning_rate
        inner, decays = default_inner(net, initial, momentum, options, params)
        if schedule is not None and inner.is_group_lr:
            raise ValueError(
                f"learning_rate must be a number, a list, a Tensor or a MindSpore schedule where a group of params has "
                f"an lr of its own, but got the callable {learning_rate!r}: the host writes one rate for all weights"
            )
    else:
        check_inner(inner, momentum, options, params)
        decays = decays_by_name(inner.parameters, options.weight_decay)
        if learning_rate is not None and schedule is None:
            if not isinstance(learning_rate, Real):
                raise TypeError(
                    "with inner, learning_rate must be None (inner's own), a number or a callable of the step"
                )
        if learning_rate is not None:
            check_takes_rate(inner, learning_rate)
            ops.assign(inner.learning_rate, ms.Tensor(schedule(0) if schedule else learning_rate, ms.float32))
    decoupled = options.weight_decay_mode == "decoupled"
    return inner, schedule, tuple(decays[id(w)] if decoupled else 0.0 for w in inner.parameters)
