"""First-order optimizers for MindSpore with the numerics of the frameworks that define them."""

from first_order.adafactor.optimizer import Adafactor, adafactor_init, adafactor_update
from first_order.adam import Adam, adam_update, sparse_adam_update
from first_order.momentum import Momentum, momentum_update

__all__ = [
    "Adafactor", "Adam", "Momentum", "adafactor_init", "adafactor_update", "adam_update", "momentum_update",
    "sparse_adam_update",
]  # fmt: skip
