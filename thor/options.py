"""The settings of THOR, checked once at the door: every message has the name, the value and what is allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import mindspore as ms
from mindspore import nn

import first_order
from first_order.checks import flag, number
from thor.blocks import BlockPlan, check_int
from thor.profile.records import Profile, ProfileError
from thor.refresh import TraceRule
from thor.schedules import HostSchedule

DEFAULT_BLOCK_SIZE = 128
DEFAULT_MOMENTUM = 0.9
WEIGHT_DECAY_MODES = ("coupled", "decoupled")
#: Of the steps between two refreshes, how many gather factors for the running average.
GATHERS_PER_INTERVAL = 10
#: Optimizers whose step is learning rate x direction, through momentum at the most: that is what ``clip`` bounds.
ALONG_DIRECTION = (nn.Momentum, nn.SGD, first_order.Momentum)


@dataclass(frozen=True)
class Options:
    """Checked settings; schedules are host callables."""

    damping: HostSchedule
    interval: HostSchedule
    factor_interval: HostSchedule | None
    factor_decay: float
    refresh: TraceRule
    plan: BlockPlan
    auto: bool  # the plan is a stand-in until a profile has chosen
    clip: float | None
    clip_each: float | None
    weight_decay: Any  # a number; once inner is known and where decoupled, one for each of its weights
    weight_decay_mode: str
    skip: tuple[str, ...]
    norms: bool
    max_bad_steps: int
    factor_share: float

    def gather_interval(self, step: int) -> int:
        """Steps from one gathering of factors to the next."""
        if self.factor_interval is not None:
            return int(self.factor_interval(step))
        every = int(self.interval(step))
        # without an average only the last batch before a refresh counts
        return every if self.factor_decay == 0 else max(1, every // GATHERS_PER_INTERVAL)


def block_plan(block_size: Any, split: str | None, rank: int | None) -> BlockPlan:
    """The plan that ``block_size`` stands for: an int, a plan as it is, or a profile's file; "auto" is not for here.

    A split or rank of None is BlockPlan's own default.
    """
    given: dict[str, Any] = {name: x for name, x in (("split", split), ("rank", rank)) if x is not None}
    if isinstance(block_size, BlockPlan):
        if given:
            name, value = next(iter(given.items()))
            raise ValueError(
                f"{name} must be None where block_size is a thor.BlockPlan, which has its own, but got {value!r}: "
                f"set it in the plan, thor.BlockPlan({name}={value!r}, ...)"
            )
        return block_size
    if isinstance(block_size, (str, os.PathLike)):
        try:
            return Profile.load(os.fspath(block_size)).plan(**given)
        except ProfileError as error:
            raise ProfileError(
                f"block_size must be an int, 'auto', the path of a profile or a thor.BlockPlan, "
                f"but got {block_size!r}: {error}"
            ) from error
    if isinstance(block_size, bool) or not isinstance(block_size, int):
        raise TypeError(
            f"block_size must be an int of at least 1, 'auto', the path of a profile or a thor.BlockPlan, "
            f"but got {block_size!r} of type {type(block_size).__name__}"
        )
    return BlockPlan(block_size=block_size, **given)


def skip_patterns(skip: Any) -> tuple[str, ...]:
    """Regular expressions on layer names, checked."""
    if isinstance(skip, str) or not isinstance(skip, Iterable):
        raise TypeError(f"skip must be a sequence of regular expressions on layer names, but got {skip!r}")
    patterns = tuple(skip)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"skip: {pattern!r} is not a regular expression: {error}") from error
    return patterns


def read_options(
    *, damping, block_size, split, rank, refresh, interval, factor_interval, factor_decay, clip, clip_each,
    weight_decay, weight_decay_mode, skip, max_bad_steps, norms, factor_share,
) -> Options:  # fmt: skip
    """All settings but the inner optimizer's, checked."""
    if not isinstance(refresh, TraceRule):
        raise TypeError(f"refresh must be a thor.TraceRule, but got {refresh!r} of type {type(refresh).__name__}")
    if weight_decay_mode not in WEIGHT_DECAY_MODES:
        raise ValueError(
            f"weight_decay_mode must be one of {', '.join(WEIGHT_DECAY_MODES)}, but got {weight_decay_mode!r}"
        )
    for name, limit in (("clip", clip), ("clip_each", clip_each)):
        if limit is not None and number(name, limit, 0.0) == 0.0:
            raise ValueError(f"{name} must be greater than 0, or None for no limit, but got 0")
    gather = None
    if factor_interval is not None:
        gather = HostSchedule("factor_interval", factor_interval, low=1, above=False, integer=True)
    auto = isinstance(block_size, str) and block_size == "auto"
    return Options(
        damping=HostSchedule("damping", damping),
        interval=HostSchedule("interval", interval, low=1, above=False, integer=True),
        factor_interval=gather,
        factor_decay=number("factor_decay", factor_decay, 0.0, 1.0, open_high=True),
        refresh=refresh,
        plan=block_plan(DEFAULT_BLOCK_SIZE if auto else block_size, split, rank),
        auto=auto,
        clip=None if clip is None else float(clip),
        clip_each=None if clip_each is None else float(clip_each),
        weight_decay=number("weight_decay", weight_decay, 0.0),
        weight_decay_mode=weight_decay_mode,
        skip=skip_patterns(skip),
        norms=flag("norms", norms),
        max_bad_steps=check_int("max_bad_steps", max_bad_steps, 1),
        factor_share=number("factor_share", factor_share, 0.0, 1.0, open_low=True),
    )


def without_decays(groups: list[dict[str, Any]], default: float) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """Parameter groups as Momentum is to have them where decay is decoupled, and each weight's decay, by its id.

    As nn.Optimizer has it, a group's own decay or else ``default`` is for all its weights, whatever their names.
    """
    plain: list[dict[str, Any]] = []
    decays: dict[int, float] = {}
    for index, group in enumerate(groups):
        decay = number(f"weight_decay of params[{index}]", group.get("weight_decay", default), 0.0)
        decays |= {id(weight): decay for weight in group.get("params", ())}
        plain.append({key: value for key, value in group.items() if key != "weight_decay"})
    return plain, decays


def decays_by_name(weights: Iterable[Any], decay: float) -> dict[int, float]:
    """Each weight's decay, by its id, by nn.Optimizer's rule (its ``decay_filter``) for weights outside groups."""
    return {id(w): 0.0 if "beta" in w.name or "gamma" in w.name else decay for w in weights}


def decays_itself(inner: nn.Optimizer) -> bool:
    """Whether weights decay by ``inner``'s own doing."""
    # Adafactor tells nn.Optimizer nothing of its decay
    own = inner.param_groups if isinstance(inner, first_order.Adafactor) else ()
    return bool(inner.exec_weight_decay) or any(group["weight_decay"] for group in own)


def check_inner(inner: Any, momentum: Any, options: Options, params: Any) -> None:
    """Refuse what is no optimizer, and settings that mean nothing beside this one."""
    if not isinstance(inner, nn.Optimizer):
        raise TypeError(f"inner must be an nn.Optimizer over the network's weights, but got {type(inner).__name__}")
    name = type(inner).__name__
    if momentum is not None:
        raise ValueError(
            f"momentum must be None beside inner, for it is the default Momentum's, but got {momentum!r}: "
            f"set it on {name}"
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


def default_momentum(
    net: nn.Cell, initial: Any, momentum: Any, options: Options, params: Any
) -> tuple[nn.Momentum, dict[int, float]]:
    """nn.Momentum over the network's weights or ``params``, and what of each weight decays apart from it."""
    weights = net.trainable_params() if params is None else params
    if not isinstance(weights, Iterable):
        raise TypeError(f"params must be a list of Parameters or of groups, but got {params!r}")
    weights = list(weights)  # an iterator could be read once only
    if not weights:
        raise ValueError("net has no trainable weights: nothing to optimize")
    keep = number("momentum", DEFAULT_MOMENTUM if momentum is None else momentum, 0.0, 1.0, open_high=True)
    if options.weight_decay_mode == "coupled":
        return nn.Momentum(weights, initial, keep, options.weight_decay), {}
    decays: dict[int, float] = {}
    if all(isinstance(item, dict) for item in weights):
        weights, decays = without_decays(weights, options.weight_decay)
    default = nn.Momentum(weights, initial, keep)
    return default, decays or decays_by_name(default.parameters, options.weight_decay)


def inner_optimizer(
    net: nn.Cell, inner: Any, learning_rate: Any, momentum: Any, options: Options, params: Any
) -> tuple[nn.Optimizer, HostSchedule | None, Options]:
    """The optimizer that moves the weights, the host schedule of its learning rate, if it has one, and the options.

    A number, a list, a Tensor or a MindSpore schedule goes to the optimizer itself; a callable of the step is read on
    the host and written into its ``learning_rate``. Where decay is decoupled, the options have it weight by weight.
    """
    if isinstance(learning_rate, bool) or isinstance(learning_rate, str):
        raise TypeError(f"learning_rate must be a number or a schedule, but got {learning_rate!r}")
    is_schedule = callable(learning_rate) and not isinstance(learning_rate, (nn.Cell, ms.Tensor))
    schedule = HostSchedule("learning_rate", learning_rate, above=False) if is_schedule else None
    if isinstance(learning_rate, Real):
        number("learning_rate", learning_rate, 0.0)
    if inner is None:
        if learning_rate is None:
            raise ValueError("learning_rate must be a number or a schedule where inner is None, but got None")
        initial = float(schedule(0)) if schedule else learning_rate
        inner, decays = default_momentum(net, initial, momentum, options, params)
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
            schedule = HostSchedule("learning_rate", float(learning_rate), above=False)
        if schedule is not None and (inner.dynamic_lr or inner.is_group_lr):
            raise ValueError("inner has a learning-rate schedule or groups of its own: pass learning_rate=None")
    if options.weight_decay_mode == "decoupled":
        options = replace(options, weight_decay=tuple(decays[id(weight)] for weight in inner.parameters))
    return inner, schedule, options
