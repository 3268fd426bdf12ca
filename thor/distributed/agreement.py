"""What must be the same on every rank of a job: their collectives would not fit each other, or their weights."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from mindspore import Tensor

from thor.distributed.ranks import Ranks


def settings_to_share(optimizer: Any, accumulate: int) -> dict[str, Any]:
    """Settings of a :class:`thor.THOR` by name; schedules by what they are at its step."""
    options, step = optimizer.options, optimizer.step
    names = ("refresh", "factor_decay", "factor_share", "clip", "clip_each", "weight_decay", "weight_decay_mode",
             "max_bad_steps")  # fmt: skip
    of_inner = ("momentum", "alpha", "beta", "beta1", "beta2", "eps", "epsilon", "weight_decay", "use_nesterov",
                "nesterov", "norm_coefficient")  # fmt: skip
    groups = getattr(optimizer.inner, "param_groups", ())  # Adafactor's, which tells nn.Optimizer nothing of them
    return (
        {name: getattr(options, name) for name in names}
        | {
            "step": step,
            "next_refresh": int(optimizer.next_refresh.asnumpy()[0]),
            "next_gather": int(optimizer.next_gather.asnumpy()[0]),
            "stopped layers": optimizer.status.asnumpy().tolist(),
            "block plan": optimizer.plan.asnumpy().tobytes(),
            "sharing": optimizer.ranks.sharing,
            "accumulate": accumulate,
            "interval": int(options.interval(step)),
            "factor_interval": options.gather_interval(step),
            "damping": float(options.damping(step)),
            "loss_scale": optimizer.scale.asnumpy().tolist(),
            "loss_scale's rule": optimizer._scale_rule,
            "inverse": optimizer._inverter.method,
            "inner": type(optimizer.inner).__name__,
            "learning_rate": _numbers(optimizer.inner.get_lr() if optimizer._rate is None else optimizer._rate(step)),
        }
        | {f"{name} of inner": _numbers(getattr(optimizer.inner, name, None)) for name in of_inner}
        | {"groups of inner": [{k: _numbers(v) for k, v in each.items() if k != "params"} for each in groups]}
        | {"decays": list(optimizer.decays)}
    )


def refresh_alike(optimizer: Any, layers: list[int]) -> int:
    """A refresh of :class:`thor.THOR` that decides alike on all ranks; bytes that this one put into messages for it.

    All take rank 0's traces: of sums of the same numbers the last bit may differ between processors, which can turn a
    decision.
    """
    ranks = optimizer.ranks
    before = 0 if ranks is None else ranks.bytes
    traces = np.concatenate([optimizer._captured[i].traces() for i in layers])
    optimizer.refresh(layers, traces if ranks is None else ranks.of_first(traces))
    return 0 if ranks is None else ranks.bytes - before


def _numbers(value: Any) -> Any:
    """Of Tensors, and of tuples of them, their numbers; of what is neither number nor text the type."""
    if isinstance(value, (tuple, list)):
        return [_numbers(each) for each in value]
    if isinstance(value, Tensor):
        return value.asnumpy().tolist()
    return value if value is None or isinstance(value, int | float | str) else type(value).__name__


def same_everywhere(ranks: Ranks, values: dict[str, Any]) -> None:
    """Raise if a rank has other settings than rank 0: their collectives would not fit each other."""
    own = np.array([zlib.crc32(repr(v).encode()) % 2**20 for v in values.values()], np.float32)
    first = ranks.of_first(own)
    wrong = [name for name, one, other in zip(values, own, first, strict=True) if one != other]
    # all ranks must raise, or the others wait for this one
    if ranks.total(np.array([len(wrong)], np.float32))[0]:
        found = ", ".join(f"{name}={values[name]!r}" for name in wrong) or "another rank's"
        raise ValueError(f"rank {ranks.rank}: settings must be the same on every rank, but differ from rank 0: {found}")
