"""The settings of an optimizer that must be equal on all ranks of a data-parallel job.

Ranks with different settings would send messages that do not match, or move their weights differently.
"""

from __future__ import annotations

from typing import Any

from mindspore import Tensor

from thor.distributed.agreement import same_everywhere, same_values
from thor.optimizer import THOR
from thor.plain_optimizer import PlainOptimizer

_OF_OPTIONS = ("kind", "adam", "refresh", "factor_decay", "factor_share", "clip", "clip_each", "graft", "weight_decay",
               "weight_decay_mode", "max_bad_steps")  # fmt: skip
_OF_INNER = ("momentum", "alpha", "beta", "beta1", "beta2", "eps", "epsilon", "weight_decay", "use_nesterov",
             "nesterov", "norm_coefficient", "iteration", "adjust_lr_fn", "by_muon", "shampoo_beta", "shapes",
             "precondition_frequency", "normalize_grads", "correct_bias")  # fmt: skip


def shared_settings(optimizer: THOR | PlainOptimizer, accumulate: int) -> dict[str, Any]:
    """The settings by name; for a schedule, its value at the current step."""
    state, inner = optimizer.own_state, optimizer.inner
    groups = getattr(inner, "param_groups", ())  # Adafactor keeps its groups here, unknown to nn.Optimizer
    rate = None if isinstance(optimizer, PlainOptimizer) else optimizer.rate
    return (
        {
            "step": state.step,
            "accumulate": accumulate,
            "loss_scale": state.scale.asnumpy().tolist(),
            "loss_scale's rule": optimizer.scale_rule,
            "inner": type(inner).__name__,
            "learning_rate": _numbers(inner.get_lr() if rate is None else rate(state.step)),
        }
        | {f"{name} of inner": _numbers(getattr(inner, name, None)) for name in _OF_INNER}
        | {"groups of inner": [{k: _numbers(v) for k, v in each.items() if k != "params"} for each in groups]}
        | (_of_plain(optimizer) if isinstance(optimizer, PlainOptimizer) else _of_thor(optimizer))
    )


def compare_over_ranks(optimizer: THOR | PlainOptimizer, accumulate: int) -> None:
    """Raise ValueError on all ranks if they have other settings, weights or moments than rank 0; all must call it."""
    ranks, inner = optimizer.ranks, optimizer.inner
    assert ranks is not None
    same_everywhere(ranks, shared_settings(optimizer, accumulate))
    same_values(ranks, {id(p): p for p in (*inner.parameters, *inner.get_parameters())}.values())


def _of_plain(optimizer: PlainOptimizer) -> dict[str, Any]:
    return {"clip_norm": optimizer.clip_norm, "max_bad_steps": optimizer.max_bad_steps}


def _of_thor(optimizer: THOR) -> dict[str, Any]:
    options, state, step = optimizer.options, optimizer.own_state, optimizer.step
    return {name: getattr(options, name) for name in _OF_OPTIONS} | {
        "next_refresh": int(state.next_refresh.asnumpy()[0]),
        "next_gather": int(state.next_gather.asnumpy()[0]),
        "candidate": state.candidate_step,
        "stopped layers": state.status.asnumpy().tolist(),
        "block plan": state.plan.asnumpy().tobytes(),
        "weight_sharing": [layer.sharing for layer in optimizer.captured],
        "sharing": None if optimizer.ranks is None else optimizer.ranks.sharing,
        "interval": int(options.interval(step)),
        "factor_interval": options.gather_interval(step),
        "damping": options.damping_at(step),
        "inverse": optimizer.refresher.method.algorithm,
        "decays": list(optimizer.decays),
    }


def _numbers(value: Any) -> Any:
    """Tensors and tuples as lists of numbers; numbers, texts and None unchanged; the type's name of anything else."""
    if isinstance(value, (tuple, list)):
        return [_numbers(each) for each in value]
    if isinstance(value, Tensor):
        return value.asnumpy().tolist()
    return value if value is None or isinstance(value, int | float | str) else type(value).__name__
