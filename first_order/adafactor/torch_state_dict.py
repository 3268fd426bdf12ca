"""Conversion of Adafactor's state to and from the layout of ``torch.optim.Adafactor.state_dict()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from first_order.adafactor.factored_moments import state_shapes
from first_order.adafactor.param_groups import rate_on_host, read_options

#: PyTorch's names of the factors.
NAMES = {"row": "row_var", "col": "col_var", "variance": "variance"}
OPTIONS = ("beta2_decay", "eps", "d", "weight_decay", "foreach", "maximize")


def _places(optimizer: Any) -> dict[int, dict[str, tuple[Parameter, Any]]]:
    """For each parameter, where its step and factors are stored: {name: (Parameter, index into it)}."""
    places = {}
    for bucket, move in zip(optimizer.buckets, optimizer.moves, strict=True):
        for j, member in enumerate(bucket.members):
            within = j if bucket.count else ...
            own = {"step": (optimizer.steps[bucket.group], bucket.start + j)}
            for name, factor in zip(state_shapes(bucket.shape), move.factors, strict=True):
                own[NAMES[name]] = (factor, within)
            places[member] = own
    return places


def _numbers(optimizer: Any) -> list[list[int]]:
    """For each group, its members as indices into the optimizer's parameters."""
    at = {id(p): i for i, p in enumerate(optimizer.parameters)}
    return [[at[id(p)] for p in group["params"]] for group in optimizer.param_groups]


def build(optimizer: Any, convert: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    """The state dictionary; as in PyTorch, parameters without a step yet have no entry."""
    places, state, groups, number = _places(optimizer), {}, [], 0
    step = int(optimizer.global_step.asnumpy().item())
    for group, members in zip(optimizer.param_groups, _numbers(optimizer), strict=True):
        ids = list(range(number, number + len(members)))
        number += len(members)
        groups.append({key: value for key, value in group.items() if key != "params"} | {"params": ids})
        groups[-1]["lr"] = group.rate_at(step)  # a number, as in PyTorch
        for key, member in zip(ids, members, strict=True):
            entry = {
                name: np.array(parameter.asnumpy()[within]) for name, (parameter, within) in places[member].items()
            }
            if entry["step"] > 0:
                entry["step"] = entry["step"].astype(np.float32)
                state[key] = {name: convert(value) for name, value in entry.items()}
    return {"state": state, "param_groups": groups}


def load(optimizer: Any, state_dict: Any) -> None:
    """Load a state dictionary; if it does not fit, raise before anything is changed."""
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= set(state_dict):
        raise ValueError("state_dict must be a dictionary with 'state' and 'param_groups', as state_dict() returns")
    groups, members = state_dict["param_groups"], _numbers(optimizer)
    sizes, found = [len(m) for m in members], [len(group["params"]) for group in groups]
    if sizes != found:
        raise ValueError(f"state_dict has groups of {found} parameters, but the optimizer has groups of {sizes}")
    options = [read_options(**{key: group[key] for key in OPTIONS if key in group}) for group in groups]
    rates = [
        rate_on_host(_array(new["lr"]).item()) if "lr" in new and not old.lr_is_read_only else None
        for old, new in zip(optimizer.param_groups, groups, strict=True)
    ]
    arrays = _merged(optimizer, state_dict["state"], groups, members)
    for group, new, rate in zip(optimizer.param_groups, options, rates, strict=True):
        new.pop("foreach", None)  # foreach says how this optimizer stacks its state, and stays
        for key, value in new.items():
            group[key] = value
        if rate is not None:
            group["lr"] = rate
    for parameter, value in arrays:
        ops.assign(parameter, Tensor(value, parameter.dtype))
    last = max(int(steps.asnumpy().max()) for steps in optimizer.steps)
    ops.assign(optimizer.global_step, Tensor([last], ms.int32))


def _merged(
    optimizer: Any, state: dict[int, Any], groups: list[Any], members: list[list[int]]
) -> list[tuple[Parameter, np.ndarray]]:
    """The new values of all state Parameters; zeros where the dictionary has no entry."""
    state_parameters = (*optimizer.steps, *(p for move in optimizer.moves for p in move.factors))
    arrays = {id(p): (p, np.zeros(p.shape, p.asnumpy().dtype)) for p in state_parameters}
    places = _places(optimizer)
    for group, indices in zip(groups, members, strict=True):
        for key, member in zip(group["params"], indices, strict=True):
            if key not in state:
                continue
            name = optimizer.parameters[member].name
            if set(state[key]) != set(places[member]):
                raise ValueError(
                    f"state of parameter {key} ({name}) must have {', '.join(places[member])}, but has "
                    f"{', '.join(map(str, state[key]))}"
                )
            for part, (parameter, within) in places[member].items():
                value, target = _array(state[key][part]), arrays[id(parameter)][1]
                if value.shape != target[within].shape:
                    raise ValueError(
                        f"{part} of parameter {key} ({name}) must have shape {target[within].shape}, but got "
                        f"{value.shape}"
                    )
                target[within] = value
    return list(arrays.values())


def _array(value: Any) -> np.ndarray:
    """A MindSpore or PyTorch tensor, an array or a number as a NumPy array."""
    return value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)
