"""A second-order optimizer toolkit for MindSpore, centred on THOR.

A public name is imported when it is first used, so that programs which need no MindSpore start without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thor.callbacks import TellOptimizer
    from thor.capture.attach import detach
    from thor.capture.layer_classes import register
    from thor.curvature.trace_rule import Decision, RefreshRecord, TraceRule
    from thor.distributed.ranks import Sharing
    from thor.factors.blocks import BlockPlan
    from thor.functional import value_and_grad
    from thor.optimizer import THOR
    from thor.records import LayerRecord
    from thor.runtime import device
    from thor.settings import presets, schedules
    from thor.settings.loss_scale import DynamicLossScale
    from thor.settings.schedules import ExponentialDamping, GrowingInterval, PolynomialRate, RelativeDamping
    from thor.train_step import TrainStep

__version__ = "0.2.0"
__all__ = [
    "THOR", "BlockPlan", "Decision", "DynamicLossScale", "ExponentialDamping", "GrowingInterval", "LayerRecord",
    "PolynomialRate", "RefreshRecord", "RelativeDamping", "Sharing", "TellOptimizer", "TraceRule", "TrainStep",
    "detach", "device", "presets", "register", "schedules", "value_and_grad",
]  # fmt: skip

_MODULES = {
    "device": "thor.runtime.device",
    "presets": "thor.settings.presets",
    "schedules": "thor.settings.schedules",
}
_MODULE_OF = {
    "BlockPlan": "thor.factors.blocks",
    "Decision": "thor.curvature.trace_rule",
    "DynamicLossScale": "thor.settings.loss_scale",
    "ExponentialDamping": "thor.settings.schedules",
    "GrowingInterval": "thor.settings.schedules",
    "LayerRecord": "thor.records",
    "PolynomialRate": "thor.settings.schedules",
    "RefreshRecord": "thor.curvature.trace_rule",
    "RelativeDamping": "thor.settings.schedules",
    "Sharing": "thor.distributed.ranks",
    "THOR": "thor.optimizer",
    "TellOptimizer": "thor.callbacks",
    "TraceRule": "thor.curvature.trace_rule",
    "TrainStep": "thor.train_step",
    "detach": "thor.capture.attach",
    "register": "thor.capture.layer_classes",
    "value_and_grad": "thor.functional",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = import_module(_MODULES[name])
    elif name in _MODULE_OF:
        found = getattr(import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
