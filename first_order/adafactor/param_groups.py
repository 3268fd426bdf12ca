"""Adafactor's parameter groups: options that can be read and written between steps, as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from first_order import checks, tensor_checks
from first_order.base import ConstantRate, parameter_groups


def read_options(**options: Any) -> dict[str, Any]:
    """The given options of a group, checked."""
    return {name: _READERS[name](name, value) for name, value in options.items()}


def _decay(name: str, value: Any) -> float:
    return checks.number(name, value, -math.inf, 0.0)


def _eps(name: str, value: Any) -> tuple[float | None, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be a pair (eps1, eps2), eps1 a number or None, but got {value!r}")
    first = None if value[0] is None else checks.at_least_0(f"{name}[0]", value[0])
    return first, checks.at_least_0(f"{name}[1]", value[1])


def _clipping(name: str, value: Any) -> float:
    return checks.number(name, value, 1.0)


def _foreach(name: str, value: Any) -> bool | None:
    return None if value is None else checks.flag(name, value)


#: Keys of a group that nn.Optimizer reads; all others are options of Adafactor.
BASE_KEYS = ("params", "lr", "grad_centralization", "order_params")
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "beta2_decay": _decay, "eps": _eps, "d": _clipping, "weight_decay": checks.at_least_0, "foreach": _foreach,
    "maximize": checks.flag,
}  # fmt: skip


@dataclass(frozen=True)
class GroupSplit:
    """A group split into the entries for nn.Optimizer (base) and the options of Adafactor.

    ``names`` has the members' names if all were given as (name, Parameter) pairs.
    """

    base: dict[str, Any]
    options: dict[str, Any]
    names: list[str] | None

    @property
    def members(self) -> list[Parameter]:
        """The group's Parameters; empty for a group that has only ``order_params``."""
        return list(self.base.get("params", ()))


def split_groups(params: Any) -> list[GroupSplit]:
    """All groups of ``params``, split; parameters without groups form one."""
    if isinstance(params, Iterable) and not isinstance(params, Tensor | dict | str):
        params = list(params)
        if params and isinstance(params[0], dict):
            return [split_group(group) for group in params]
    return [split_group({"params": params})]


def split_group(group: dict[str, Any]) -> GroupSplit:
    """Split one group; its options are not checked yet."""
    if not isinstance(group, dict):
        raise TypeError(f"params must be all dictionaries or none, but one item is {type(group).__name__}")
    options = {key: value for key, value in group.items() if key in _READERS}
    base = {key: value for key, value in group.items() if key not in _READERS}
    unknown = [key for key in base if key not in BASE_KEYS]
    if unknown:
        raise KeyError(f"a group has the keys {', '.join((*BASE_KEYS, *_READERS))}, but got {unknown[0]!r}")
    names = None
    if "order_params" not in base:
        members = base.get("params")
        if isinstance(members, Iterable) and not isinstance(members, Tensor | dict | str):
            members = list(members)
            pairs = [item for item in members if isinstance(item, tuple)]
            names = [item[0] for item in pairs] if len(pairs) == len(members) else None
        base["params"] = parameter_groups(members)
    return GroupSplit(base, options, names)


def with_rate(split: GroupSplit, default: Any) -> GroupSplit:
    """Give a group without an lr the default as its own, as in PyTorch, if the default is a plain number.

    A schedule or function is shared by all groups without an lr, because it has one value a step.
    """
    plain = isinstance(default, int | float) or (isinstance(default, Tensor) and default.ndim == 0)
    if not plain or not split.members or "lr" in split.base:
        return split
    return replace(split, base=split.base | {"lr": default})


def rate_on_host(value: Any) -> float:
    """A learning rate as a float; raise unless it is one number and at least 0."""
    return checks.at_least_0("lr", tensor_checks.scalar_on_host("lr", value))


class ParamGroup(MutableMapping):
    """``params``, ``lr`` and the options of one group, as a mapping.

    A new value takes effect at the next call on the host. A new lr costs nothing; a new option compiles the step anew.
    Graphs of your own around the optimizer are not compiled anew: that is up to you.
    """

    def __init__(
        self, split: GroupSplit, rate: Any, default_rate: Any, options: dict[str, Any], on_change: Callable[[], None]
    ) -> None:
        self._params, self._names = split.members, split.names
        self.bind(rate)
        self._base = with_rate(split, default_rate).base
        self._given = self._base.get("lr", default_rate)
        self._options, self._on_change = options, on_change

    def __getitem__(self, key: str) -> Any:
        if key == "params":
            return list(self._params)
        if key == "lr":
            return self._read_rate()
        if key == "param_names" and self._names:
            return list(self._names)
        return self._options[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            self._write_rate(value)
        elif key in _READERS:
            new = _READERS[key](key, value)
            if key == "foreach" and new != self._options[key]:
                raise ValueError(
                    f"foreach decides how the state is stacked and stays {self._options[key]}, but got {value}: make a "
                    f"new optimizer and load_state_dict() into it"
                )
            if new != self._options[key]:
                self._options[key] = new
                self._on_change()
        else:
            raise KeyError(f"a group has the options lr, {', '.join(_READERS)}, but got {key!r}")

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"an option of a group can be changed, not removed: {key!r}")

    def __iter__(self) -> Iterator[str]:
        names = ("param_names",) if self._names else ()
        return iter(("params", "lr", *self._options, *names))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        shown = {key: value for key, value in self.items() if key not in ("params", "param_names")}
        return f"ParamGroup({len(self._params)} parameters, {shown})"

    def base(self) -> dict[str, Any]:
        """The group's entries for nn.Optimizer, with the current rate."""
        if "lr" not in self._base:
            return self._base
        return self._base | {"lr": self._given if self.scheduled else float(self["lr"])}

    def bind(self, rate: Any) -> None:
        """Use ``rate``, which the optimizer has created anew, as the group's learning rate."""
        self._rate = rate.learning_rate if isinstance(rate, ConstantRate) else rate

    @property
    def scheduled(self) -> bool:
        """Whether lr is a list or schedule."""
        return not isinstance(self._rate, Parameter)

    @property
    def lr_is_read_only(self) -> bool:
        """Whether lr is a list, a schedule or a function, and so cannot be set."""
        return self.scheduled or callable(self._given)

    def rate_at(self, step: int) -> float:
        """The value of lr at a step, counted from 0; after the end of a list, its last value."""
        if not self.scheduled:
            return float(self["lr"])
        if isinstance(self._given, nn.Cell):
            return float(self._given(Tensor([step], ms.int32)).asnumpy().item())
        rates = self._given.asnumpy().tolist() if isinstance(self._given, Tensor) else list(self._given)
        return float(rates[min(step, len(rates) - 1)])

    def _read_rate(self) -> Any:
        """The current lr; the number as it was given, if the Parameter differs from it only by rounding."""
        if self.scheduled:
            return self._given
        now = self._rate.asnumpy()
        if isinstance(self._given, float) and now == Tensor(self._given, self._rate.dtype).asnumpy():
            return self._given
        return float(now)

    def _write_rate(self, value: Any) -> None:
        if self.lr_is_read_only:
            raise ValueError(
                f"lr follows a schedule or a function and cannot be set, but got {value!r}: make a new optimizer"
            )
        self._given = rate_on_host(value)
        ops.assign(self._rate, Tensor(self._given, self._rate.dtype))
