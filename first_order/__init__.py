"""First-order optimizers for MindSpore with the numerics of the frameworks that define them.

A public name is imported when it is first used, so that programs which only check arguments start without MindSpore.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from first_order.adafactor.optimizer import Adafactor, adafactor_init, adafactor_update
    from first_order.adam import Adam, adam_update, sparse_adam_update
    from first_order.momentum import Momentum, momentum_update
    from first_order.muon.newton_schulz import newton_schulz
    from first_order.muon.optimizer import Muon, muon_update
    from first_order.soap.optimizer import SOAP
    from first_order.soap.update import soap_init, soap_update

__all__ = [
    "Adafactor", "Adam", "Momentum", "Muon", "SOAP", "adafactor_init", "adafactor_update", "adam_update",
    "momentum_update", "muon_update", "newton_schulz", "soap_init", "soap_update", "sparse_adam_update",
]  # fmt: skip

_MODULE_OF = {
    "Adafactor": "first_order.adafactor.optimizer",
    "Adam": "first_order.adam",
    "Momentum": "first_order.momentum",
    "Muon": "first_order.muon.optimizer",
    "SOAP": "first_order.soap.optimizer",
    "adafactor_init": "first_order.adafactor.optimizer",
    "adafactor_update": "first_order.adafactor.optimizer",
    "adam_update": "first_order.adam",
    "momentum_update": "first_order.momentum",
    "muon_update": "first_order.muon.optimizer",
    "newton_schulz": "first_order.muon.newton_schulz",
    "soap_init": "first_order.soap.update",
    "soap_update": "first_order.soap.update",
    "sparse_adam_update": "first_order.adam",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
