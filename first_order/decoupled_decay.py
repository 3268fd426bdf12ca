"""Base class of the optimizers whose weight decay is decoupled: it shrinks the weights and is not in the gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from first_order.base import FirstOrder
from first_order.tensors import working_type


class DecoupledDecay(FirstOrder):
    """A :class:`FirstOrder` that multiplies weights by 1 - rate * decay.

    Which weights decay is ``nn.Optimizer``'s rule: those of a group by its ``weight_decay``, weights outside groups
    unless their names contain beta or gamma.

    Attributes:
        kind_of: for each parameter, the number of its kind. Parameters of a kind have one learning rate and one decay.
        kinds: number of kinds.
    """

    def __init__(self, params: Any, learning_rate: Any, weight_decay: Any, loss_scale: float) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale)
        groups = self.is_group
        rates = self.group_lr if self.is_group_lr else [None] * self.param_length
        # nn.Optimizer multiplies decays by the loss scale, for it adds them to scaled gradients
        decays = self.group_weight_decay if groups else [weight_decay] * self.param_length
        decays = [decay if applies else 0.0 for decay, applies in zip(decays, self.decay_flags, strict=True)]
        keys = [
            (id(rate), id(decay) if isinstance(decay, nn.Cell) else decay)
            for rate, decay in zip(rates, decays, strict=True)
        ]
        order = list(dict.fromkeys(keys))
        self.kind_of = tuple(order.index(key) for key in keys)
        self.kinds = len(order)
        self.first_of_kind = tuple(keys.index(key) for key in order)
        self.decaying = tuple(isinstance(decays[i], nn.Cell) or decays[i] > 0 for i in self.first_of_kind)
        if not self.dynamic_weight_decay:  # nn.Optimizer has rounded them to float32
            unscaled = [Tensor(decay / loss_scale if groups else decay, self.precision) for decay in decays]
            self.weight_decay = tuple(unscaled) if groups else Tensor(weight_decay, self.precision)
        self.decay_scale = Tensor(1.0 / loss_scale if self.dynamic_weight_decay else 1.0, self.precision)
        self.scalar_type = self.precision

    def rates_and_keeps(self):
        """(rates, keeps) of the kinds, in a graph: the learning rate, and 1 - rate * decay that multiplies weights."""
        rates, decays = self.get_lr(), self.get_weight_decay()
        found, keeps = (), ()
        for k in range(self.kinds):
            i = self.first_of_kind[k]
            rate = rates[i] if self.is_group_lr else rates
            rate = rate.reshape(()).astype(self.scalar_type)
            keep = ops.ones_like(rate)
            if self.decaying[k]:
                decay = decays[i] if self.is_group else decays
                keep = 1 - rate * (decay.reshape(()).astype(self.scalar_type) * self.decay_scale)
            found += (rate,)
            keeps += (keep,)
        return found, keeps

    def working_state(self, prefix: str, members: Iterable[int]) -> list[Parameter]:
        """For each parameter of these numbers, a zero Parameter of its shape in the working type, ``prefix``.name."""
        chosen = [self.parameters[i] for i in members]
        return [
            Parameter(ops.zeros(p.shape, working_type(p.dtype)), name=f"{prefix}.{p.name}", requires_grad=False)
            for p in chosen
        ]


def by_kind(kind_of: Sequence[int], members: Iterable[int]) -> dict[int, list[int]]:
    """The members of each kind that has any."""
    found: dict[int, list[int]] = {}
    for member in members:
        found.setdefault(kind_of[member], []).append(member)
    return found
