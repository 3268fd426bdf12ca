"""Which weights Muon moves, and the groups that give the others learning rate and decay of AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import Parameter

from first_order import checks, tensor_checks
from first_order.base import check_rate, decays_by_rule, parameter_groups


@dataclass(frozen=True)
class Division:
    """The parameters, divided between Muon and AdamW.

    Attributes:
        items: Parameters or groups, as ``nn.Optimizer`` takes them.
        muon: ``id`` of each Parameter that Muon moves; AdamW moves the others.
    """

    items: list[Any]
    muon: frozenset[int]


def divide(params: Any, flatten: bool, rate: Any, decay: float | None) -> Division:
    """Divide ``params``, which may be groups with ``use_muon``.

    Args:
        params: as for ``nn.Optimizer``; a group may have ``use_muon``.
        flatten: whether Muon moves tensors of more than two axes.
        rate: learning rate of AdamW's weights in groups without ``lr``; None for the optimizer's.
        decay: weight decay of AdamW's weights in groups without ``weight_decay``; None for the optimizer's.
    """
    items = parameter_groups(params)
    grouped = isinstance(items[0], dict)
    groups = items if grouped else [{"params": items}]
    muon: set[int] = set()
    for index, group in enumerate(groups):
        asked = group.pop("use_muon", None)
        members = group.get("params", [])
        if asked is not None and checks.flag(f"use_muon of group {index}", asked):
            _check_members(members, index, flatten)
        muon |= {id(p) for p in members if (_by_rule(p, flatten) if asked is None else asked)}
    own = {name: value for name, value in (("lr", rate), ("weight_decay", decay)) if value is not None}
    if not own:
        return Division(items, frozenset(muon))
    if not grouped:
        groups = _by_name(items)
    order = next((group["order_params"] for group in groups if "order_params" in group), None)
    split = [part for group in groups if "params" in group for part in _split(group, muon, own)]
    if order is None:
        order = items if not grouped else [p for group in groups for p in group["params"]]
    return Division([*split, {"order_params": list(order)}], frozenset(muon))


def check_adamw_rate(value: Any, learning_rate: Any) -> Any:
    """``adamw_learning_rate``; raise for what is no rate, and for functions: only one rate for all can be one."""
    if value is None:
        return None
    check_rate("adamw_learning_rate", value)
    for name, rate in (("adamw_learning_rate", value), ("learning_rate beside adamw_learning_rate", learning_rate)):
        if tensor_checks.is_supplier(rate):
            raise TypeError(
                f"{name} must be a number, list, Tensor or schedule, but got the function {rate!r}: only one rate for "
                f"all weights can be a function"
            )
    return value


def _by_rule(parameter: Parameter, flatten: bool) -> bool:
    """Whether Muon moves a parameter of a group without ``use_muon``: a matrix that is no embedding."""
    return (parameter.ndim == 2 or (flatten and parameter.ndim > 2)) and "embedding" not in parameter.name


def _check_members(members: Sequence[Parameter], index: int, flatten: bool) -> None:
    """Raise for a parameter in a group with ``use_muon=True`` that is no matrix."""
    for p in members:
        if p.ndim < 2:
            raise ValueError(
                f"group {index} has use_muon=True, but {p.name} has shape {tuple(p.shape)}: Muon moves matrices, so "
                f"put it into a group with use_muon=False"
            )
        if p.ndim > 2 and not flatten:
            raise ValueError(
                f"group {index} has use_muon=True, but {p.name} has shape {tuple(p.shape)}: leave flatten=True for "
                f"weights of more than two axes, or put it into a group with use_muon=False"
            )


def _by_name(parameters: list[Parameter]) -> list[dict[str, Any]]:
    """Groups for parameters outside groups: by ``nn.Optimizer``'s rule those named beta or gamma do not decay."""
    still = [p for p in parameters if not decays_by_rule(p)]
    others = [p for p in parameters if decays_by_rule(p)]
    groups: list[dict[str, Any]] = [{"params": others}, {"params": still, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _split(group: dict[str, Any], muon: set[int], own: dict[str, Any]) -> list[dict[str, Any]]:
    """The group's part for Muon, and its part for AdamW, with settings of its ``own`` where the group has none."""
    ours = [p for p in group["params"] if id(p) in muon]
    others = [p for p in group["params"] if id(p) not in muon]
    parts = [group | {"params": ours}, own | group | {"params": others}]
    return [part for part in parts if part["params"]]
