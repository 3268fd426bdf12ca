"""The two ways to precondition a gradient, and the settings that belong to each.

inverse       G^-1 dW A^-1 by damped inverses, which an inner optimizer takes as a gradient
eigenbasis    Adam in the eigenbases of A and of G
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thor.curvature.method_names import EIGENBASIS, INVERSE
from thor.curvature.trace_rule import TraceRule
from thor.settings.schedules import GrowingInterval, RelativeDamping

KINDS = (INVERSE, EIGENBASIS)
#: What each kind keeps of a layer, and the method of THOR that reads it.
PLURALS, READERS = {INVERSE: "inverses", EIGENBASIS: "eigenbases"}, {INVERSE: "inverses", EIGENBASIS: "bases"}

_GROWING = GrowingInterval(1, 100, 1.1)
#: What a setting is where it is left out.
DEFAULTS: dict[str, dict[str, Any]] = {
    INVERSE: {
        "split": "block+mean", "interval": 100, "factor_decay": 0.95, "refresh": TraceRule(),
        "weight_decay_mode": "coupled", "beta1": None, "beta2": None, "epsilon": None, "rate_factor": None,
        "graft": False,
    },
    EIGENBASIS: {
        "split": "block", "interval": _GROWING, "factor_decay": 0.9, "refresh": TraceRule.thor_nt(),
        "weight_decay_mode": "decoupled", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8,
        "rate_factor": 4.0, "graft": False,
    },
}  # fmt: skip
#: What they are with inverses if the damping is left out too: settings that need no knowledge of a task.
WITHOUT_DAMPING: dict[str, Any] = {"damping": RelativeDamping(), "interval": _GROWING, "graft": True}
#: Settings that only the other kind has, with the value that says that they were left out, and why they mean nothing.
_FOREIGN: dict[str, dict[str, tuple[Any, str]]] = {
    INVERSE: {
        "beta1": (None, "Adam makes steps in eigenbases alone"),
        "beta2": (None, "Adam makes steps in eigenbases alone"),
        "epsilon": (None, "Adam makes steps in eigenbases alone"),
        "rate_factor": (None, "a rate of inverses is the inner optimizer's"),
    },
    EIGENBASIS: {
        "damping": (None, "nothing is inverted"),
        "clip": (None, "Adam's step needs no limit in the norm of the curvature"),
        "graft": (None, "Adam's step has its own length"),
        "inner": (None, "the step is Adam's already"),
        "inverse": (None, "nothing is inverted"),
        "rank": (16, "an eigenbasis has no low-rank part"),
    },
}
_ONLY = {EIGENBASIS: {"split": "block", "weight_decay_mode": "decoupled"}}


def kind_of(precondition: Any, damping: Any) -> str:
    """The way to precondition; where it is left out, inverses if a damping is given."""
    if precondition is None:
        return EIGENBASIS if damping is None else INVERSE
    if precondition not in KINDS:
        raise ValueError(f"precondition must be one of {', '.join(KINDS)}, or None, but got {precondition!r}")
    return str(precondition)


def with_defaults(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with those of the kind where they are None.

    Raises ValueError for a setting that means nothing to this kind.
    """
    for name, (absent, why) in _FOREIGN[kind].items():
        if name in settings and settings[name] != absent:
            raise ValueError(
                f"{name} must be left out with precondition={kind!r}, for {why}, but got {settings[name]!r}"
            )
    for name, allowed in _ONLY.get(kind, {}).items():
        if settings.get(name) not in (None, allowed):
            raise ValueError(f"{name} must be {allowed!r} with precondition={kind!r}, but got {settings[name]!r}")
    defaults = DEFAULTS[kind]
    if kind == INVERSE and settings.get("damping") is None:
        defaults = defaults | WITHOUT_DAMPING | ({"graft": False} if settings.get("clip") is not None else {})
    return {name: defaults.get(name) if value is None else value for name, value in settings.items()}
