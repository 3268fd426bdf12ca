"""The settings of THOR and their checks. Error messages name the setting, its value and the allowed values."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from first_order.checks import below_1, check_int, flag, number
from thor.capture.targets import skip_patterns
from thor.curvature.damping import Damping
from thor.curvature.trace_rule import TraceRule
from thor.factors.blocks import BlockPlan
from thor.profile.profile_file import Profile
from thor.settings.gathering import default_factor_interval
from thor.settings.kinds import INVERSE
from thor.settings.schedules import HostSchedule, RelativeDamping, default_first_test

DEFAULT_BLOCK_SIZE = 128
WEIGHT_DECAY_MODES = ("coupled", "decoupled")


@dataclass(frozen=True)
class AdamSettings:
    """Decays of Adam's two running averages, what bounds its step where gradients are tiny, and the rate in a basis."""

    beta1: float
    beta2: float
    epsilon: float
    rate_factor: float


@dataclass(frozen=True)
class Options:
    """Checked settings; schedules are callables on the host."""

    kind: str
    damping: HostSchedule | None
    relative: bool  # True if the damping is a share of each layer's mean eigenvalue
    interval: HostSchedule
    factor_interval: HostSchedule | None
    factor_decay: float
    refresh: TraceRule
    plan: BlockPlan
    auto: bool  # True if ``plan`` is a placeholder until a profile has chosen one
    clip: float | None
    clip_each: float | None
    graft: bool
    weight_decay: float
    weight_decay_mode: str
    skip: tuple[str, ...]
    norms: bool
    max_bad_steps: int
    factor_share: float
    adam: AdamSettings | None

    def damping_at(self, step: int) -> Damping:
        """The damping of a step; 0 where nothing is inverted."""
        return Damping(0.0 if self.damping is None else float(self.damping(step)), self.relative)

    def gather_interval(self, step: int) -> int:
        """The number of steps from one gathering of factors to the next."""
        if self.factor_interval is not None:
            return int(self.factor_interval(step))
        every = int(self.interval(step))
        # without a running average, only the last batch before a refresh counts
        return every if self.factor_decay == 0 else default_factor_interval(every)


def block_plan(block_size: Any, split: str, rank: int) -> BlockPlan:
    """The plan for the setting ``block_size``: an int, the path of a profile, or a BlockPlan.

    :func:`read_options` handles "auto".
    """
    if isinstance(block_size, BlockPlan):
        for name, value in (("split", split), ("rank", rank)):
            if value not in (
                getattr(BlockPlan, name),
                getattr(block_size, name),
            ):  # the default cannot be told from an omitted argument
                raise ValueError(
                    f"{name}={value!r} is not the plan's, {getattr(block_size, name)!r}: where block_size is a "
                    f"thor.BlockPlan, set it there, thor.BlockPlan({name}={value!r}, ...)"
                )
        return block_size
    if isinstance(block_size, (str, os.PathLike)):
        try:
            profile = Profile.load(os.fspath(block_size))
        except ValueError as error:
            raise ValueError(
                f"block_size must be an int, 'auto', the path of a profile or a thor.BlockPlan, "
                f"but got {block_size!r}: {error}"
            ) from error
        return profile.plan(split=split, rank=rank)
    if isinstance(block_size, bool) or not isinstance(block_size, int):
        raise TypeError(
            f"block_size must be an int of at least 1, 'auto', the path of a profile or a thor.BlockPlan, "
            f"but got {block_size!r} of type {type(block_size).__name__}"
        )
    return BlockPlan(block_size=block_size, split=split, rank=rank)


def read_options(
    kind: str, *, damping: Any, block_size: Any, split: str, rank: int, refresh: Any, interval: Any,
    factor_interval: Any, factor_decay: Any, clip: Any, clip_each: Any, weight_decay: Any, weight_decay_mode: str,
    skip: Any, max_bad_steps: Any, norms: Any, factor_share: Any, beta1: Any, beta2: Any, epsilon: Any, graft: Any,
    rate_factor: Any,
) -> Options:  # fmt: skip
    """All settings, checked, except those of the inner optimizer."""
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
    if flag("graft", graft) and clip is not None:
        raise ValueError(
            f"clip must be left out with graft=True, for a direction that is as long as the gradient needs no limit, "
            f"but got {clip!r}"
        )
    relative = isinstance(damping, RelativeDamping)
    decay = below_1("factor_decay", factor_decay)
    if refresh.start is None and refresh.update > 0:
        refresh = replace(refresh, start=default_first_test(interval, decay))
    return Options(
        kind=kind,
        damping=None if damping is None else HostSchedule("damping", damping.share if relative else damping),
        relative=relative,
        interval=HostSchedule("interval", interval, low=1, above=False, integer=True),
        factor_interval=gather,
        factor_decay=decay,
        refresh=refresh,
        plan=block_plan(DEFAULT_BLOCK_SIZE if auto else block_size, split, rank),
        auto=auto,
        clip=None if clip is None else float(clip),
        clip_each=None if clip_each is None else float(clip_each),
        graft=graft,
        weight_decay=number("weight_decay", weight_decay, 0.0),
        weight_decay_mode=weight_decay_mode,
        skip=skip_patterns(skip),
        norms=flag("norms", norms),
        max_bad_steps=check_int("max_bad_steps", max_bad_steps, 1),
        factor_share=number("factor_share", factor_share, 0.0, 1.0, open_low=True),
        adam=None if kind == INVERSE else adam_settings(beta1, beta2, epsilon, rate_factor),
    )


def adam_settings(beta1: Any, beta2: Any, epsilon: Any, rate_factor: Any) -> AdamSettings:
    """The settings of Adam in eigenbases, checked."""
    return AdamSettings(
        beta1=below_1("beta1", beta1),
        beta2=below_1("beta2", beta2),
        epsilon=number("epsilon", epsilon, 0.0, open_low=True),
        rate_factor=number("rate_factor", rate_factor, 0.0, open_low=True),
    )
