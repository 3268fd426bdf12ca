"""The optimizer of a configuration, and the compiled training step that uses it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn

from scripts.settings.schedule_settings import Schedule
from scripts.settings.train_settings import THOR_KEYS_FOR_ADAM, ThorSettings, TrainSettings
from scripts.training.schedules import schedule_function
from thor.distributed.placement import Grid
from thor.runtime.errors import UserError

if TYPE_CHECKING:
    from thor import BlockPlan, TrainStep


def _step_phase() -> str:
    """The phase of every step of a first-order optimizer."""
    return "step"


@dataclass(frozen=True)
class Stepper:
    """A training step, its optimizer, and what the training loop reads from them.

    Attributes:
        optimizer: The optimizer; its Parameters are part of a checkpoint.
        step: `thor.TrainStep`: a function of a batch that updates the weights and returns the loss.
        history: Refresh decisions of thor.THOR so far; empty for other optimizers.
        phase: Kind of the next step: plain, curvature or refresh for thor.THOR, otherwise step.
        inverse_seconds: Seconds of each rank for inverses, at the last refresh that thor.THOR shared among ranks.
        state: Further cells whose Parameters are part of a checkpoint.
    """

    optimizer: nn.Cell
    step: TrainStep
    history: Callable[[], list[Any]] = list
    phase: Callable[[], str] = _step_phase
    inverse_seconds: Callable[[], list[float]] = list
    state: tuple[nn.Cell, ...] = ()


def _sharing(settings: TrainSettings) -> Any:
    """How the ranks of a job share the inverses; None without a job, where --dry-run only checks the settings."""
    import thor

    own, ranks = settings.thor, settings.data.ranks
    if ranks == 1:
        return None
    sharing = thor.Sharing(grad_worker_fraction=own.grad_worker_fraction, per=own.per)
    if ms.get_auto_parallel_context("parallel_mode") != "stand_alone":
        return sharing
    Grid.from_fraction(ranks, own.grad_worker_fraction)
    if own.block_size == "auto":
        raise ValueError(
            "block_size: auto measures one machine, and ranks could choose differently: run `thor profile` once and "
            "give the path of its profile"
        )
    return None


def build_stepper(
    settings: TrainSettings, network: nn.Cell, loss: nn.Cell, steps_per_epoch: int, blocks: BlockPlan | None = None
) -> Stepper:
    """Build the optimizer and its step; ``blocks`` is the block plan that `thor.block_size: auto` chose earlier."""
    try:
        if settings.optimizer == "thor":
            return _thor(settings, network, loss, steps_per_epoch, blocks)
        return _first_order(settings, network, loss, steps_per_epoch)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise UserError(f"{settings.optimizer}: {error}") from error


def _thor(
    settings: TrainSettings, network: nn.Cell, loss: nn.Cell, steps_per_epoch: int, blocks: BlockPlan | None
) -> Stepper:
    """Build thor.THOR and thor.TrainStep."""
    import thor

    own = settings.thor
    updates_per_epoch = steps_per_epoch / settings.accumulation
    sharing = _sharing(settings)
    moving: dict[str, Any]
    if own.inner == "adam":
        adam = settings.adam.model_copy(update={name: getattr(own, name) for name in THOR_KEYS_FOR_ADAM})
        moving = {"learning_rate": None, "inner": _optimizer("adam", adam, settings, network, updates_per_epoch)}
    else:
        moving = {
            "learning_rate": thor_rate(settings, updates_per_epoch),
            "weight_decay": own.weight_decay,
            "params": decay_groups(network, settings, own.weight_decay),
        }
    optimizer = thor.THOR(
        network,
        precondition=own.precondition,
        **moving,
        **_curvature(settings, updates_per_epoch),
        block_size=blocks or own.block_size,
        factor_interval=own.factor_interval,
        factor_share=own.factor_share,
        loss_scale=_loss_scale(settings),
        skip=tuple(own.skip),
        norms=own.norms,
        clip_each=own.clip_each,
        weight_sharing=own.weight_sharing,
        sharing=sharing,
    )
    step = thor.TrainStep(network, loss, optimizer, **_how_to_step(settings))

    def inverse_seconds() -> list[float]:
        return [] if optimizer.exchange is None else [round(float(s), 5) for s in optimizer.exchange.seconds]

    return Stepper(optimizer, step, lambda: optimizer.history, lambda: optimizer.phase, inverse_seconds)


def _curvature(settings: TrainSettings, updates_per_epoch: float) -> dict[str, Any]:
    """The settings of thor.THOR that depend on the way to precondition, or whose defaults do."""
    own = settings.thor
    values: dict[str, Any] = {
        "split": own.split,
        "refresh": trace_rule(own),
        "interval": _interval(own),
        "factor_decay": own.factor_decay,
    }
    if own.precondition == "eigenbasis":
        return values | {"beta1": own.beta1, "beta2": own.beta2, "epsilon": own.epsilon, "rate_factor": own.rate_factor}
    return values | {
        "graft": own.graft,
        "damping": thor_damping(settings, updates_per_epoch),
        "momentum": own.momentum,
        "rank": own.rank,
        "clip": own.clip,
    }


def _loss_scale(settings: TrainSettings) -> Any:
    """The loss scale: a number, or the rule of a dynamic one."""
    import thor

    return thor.DynamicLossScale() if settings.loss_scale == "dynamic" else settings.loss_scale


def _how_to_step(settings: TrainSettings) -> dict[str, Any]:
    """Arguments of thor.TrainStep that are the same for every optimizer."""
    return {"accumulate": settings.accumulation, "jit": settings.mode == "graph"}


def decay_groups(network: nn.Cell, settings: TrainSettings, decay: float) -> Any:
    """Weights, or parameter groups without decay for weights of one dimension if `decay_all` is false."""
    weights = network.trainable_params()
    if settings.decay_all or not decay:
        return weights
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": decay},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def thor_rate(settings: TrainSettings, updates_per_epoch: float) -> Callable[[int], float]:
    """The learning rate of thor.THOR as a function of the update."""
    own = settings.thor
    return schedule_function(own.learning_rate, own.schedule, settings.epochs, updates_per_epoch)


def thor_damping(settings: TrainSettings, updates_per_epoch: float) -> Any:
    """The damping of thor.THOR: a constant, a schedule, the published exponential decay, or a relative one."""
    from thor.settings.schedules import ExponentialDamping, RelativeDamping

    own = settings.thor
    if own.damping is None:
        return RelativeDamping(own.relative_damping)
    if own.damping_schedule is not None:
        return schedule_function(own.damping, own.damping_schedule, settings.epochs, updates_per_epoch)
    if own.damping_decay == 1.0:
        return own.damping
    return ExponentialDamping(own.damping, own.damping_decay, max(1, round(updates_per_epoch)))


def trace_rule(own: ThorSettings) -> Any:
    """The trace rule: a preset, or one with the two given thresholds."""
    import thor

    refresh = own.refresh
    if refresh.preset is not None:
        return replace(getattr(thor.TraceRule, refresh.preset)(), start=refresh.start)
    # both thresholds are given
    return thor.TraceRule(update=refresh.update or 0.0, stop=refresh.stop or 0.0, start=refresh.start)


def _interval(own: ThorSettings) -> Any:
    """The refresh interval: a constant, or a growing one."""
    import thor

    if own.interval.start == own.interval.end:
        return own.interval.start
    return thor.GrowingInterval(own.interval.start, own.interval.end, own.interval.factor)


def _first_order(settings: TrainSettings, network: nn.Cell, loss: nn.Cell, steps_per_epoch: int) -> Stepper:
    """Build an optimizer of first_order and thor.TrainStep."""
    import thor

    own = getattr(settings, settings.optimizer)
    optimizer = _optimizer(settings.optimizer, own, settings, network, steps_per_epoch / settings.accumulation)
    step = thor.TrainStep(
        network,
        loss,
        optimizer,
        loss_scale=_loss_scale(settings),
        clip_norm=settings.clip_norm,
        **_how_to_step(settings),
    )
    return Stepper(optimizer, step, state=(step.own_state,))


def _optimizer(
    name: str, own: Any, settings: TrainSettings, network: nn.Cell, updates_per_epoch: float
) -> nn.Optimizer:
    """Build an optimizer of first_order; its learning rates are a list with one value per update."""
    import first_order

    rates = _rates(own.learning_rate, own.schedule, settings, updates_per_epoch)
    weights = decay_groups(network, settings, own.weight_decay)
    if name == "momentum":
        return first_order.Momentum(weights, rates, own.momentum, mode=own.mode, weight_decay=own.weight_decay)
    if name == "adam":
        return first_order.Adam(
            weights, rates, own.beta1, own.beta2, own.epsilon, own.use_nesterov, weight_decay=own.weight_decay
        )
    if name == "adafactor":
        return first_order.Adafactor(
            weights, rates, own.beta2_decay, (own.eps1, own.eps2), own.d, weight_decay=own.weight_decay
        )
    if name == "muon":
        others = own.adamw_learning_rate
        return first_order.Muon(
            muon_groups(network, settings),
            rates,
            own.momentum,
            nesterov=own.nesterov,
            ns_steps=own.ns_steps,
            ns_dtype=ms.bfloat16 if own.ns_dtype == "bfloat16" else None,
            adjust_lr_fn=own.adjust_lr_fn,
            flatten=own.flatten,
            adamw_learning_rate=others and _rates(others, own.schedule, settings, updates_per_epoch),
            adamw_beta1=own.adamw_beta1,
            adamw_beta2=own.adamw_beta2,
            adamw_epsilon=own.adamw_epsilon,
        )
    if name == "soap":
        return first_order.SOAP(
            weights,
            rates,
            own.beta1,
            own.beta2,
            own.shampoo_beta,
            own.epsilon,
            own.weight_decay,
            precondition_frequency=own.precondition_frequency,
            max_precond_dim=own.max_precond_dim,
            merge_dims=own.merge_dims,
            precondition_1d=own.precondition_1d,
            normalize_grads=own.normalize_grads,
        )
    raise ValueError(f"optimizer = {name!r}: must be 'thor', 'adafactor', 'adam', 'momentum', 'muon' or 'soap'")


def _rates(highest: float, schedule: Schedule, settings: TrainSettings, updates_per_epoch: float) -> list[float]:
    """A learning rate as a list with one value per update."""
    rate = schedule_function(highest, schedule, settings.epochs, updates_per_epoch)
    return [rate(update) for update in range(max(1, int(updates_per_epoch * settings.epochs)))]


def muon_groups(network: nn.Cell, settings: TrainSettings) -> list[dict[str, Any]]:
    """Parameter groups for first_order.Muon: by weight decay, and by whether AdamW moves them by name.

    Weight decay acts as `decay_groups` and MindSpore's rule for names say.
    """
    from first_order.base import decays_by_rule

    own, weights = settings.muon, network.trainable_params()
    if own.adamw is None:
        by_name = _output_layer(network, weights)
    else:
        patterns = [re.compile(pattern) for pattern in own.adamw]
        for pattern in patterns:
            if not any(pattern.search(weight.name) for weight in weights):
                names = ", ".join(weight.name for weight in weights if weight.ndim > 1)
                raise UserError(f"muon.adamw = {pattern.pattern!r}: matches no weight; the matrices are {names}")
        by_name = [p for p in weights if any(pattern.search(p.name) for pattern in patterns)]
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for weight in weights:
        adamw = any(weight is each for each in by_name)
        decays = decays_by_rule(weight) if settings.decay_all else weight.ndim > 1
        fresh = {"params": [], "weight_decay": own.weight_decay if decays else 0.0} | (
            {"use_muon": False} if adamw else {}
        )
        groups.setdefault((adamw, decays), fresh)["params"].append(weight)
    return list(groups.values())


def _output_layer(network: nn.Cell, weights: list[ms.Parameter]) -> list[ms.Parameter]:
    """The table of an embedding that the output layer takes as its weight, as BERT's; or the last matrix."""
    owners: dict[int, list[nn.Cell]] = {}
    for _, cell in network.cells_and_names():
        for p in cell.get_parameters(expand=False):
            owners.setdefault(id(p), []).append(cell)
    shared = [p for p in weights if len(owners[id(p)]) > 1]
    tables = [p for p in shared if any("Embedding" in type(cell).__name__ for cell in owners[id(p)])]
    return tables or [p for p in weights if p.ndim > 1 and "embedding" not in p.name][-1:]
