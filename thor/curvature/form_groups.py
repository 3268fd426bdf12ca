"""Groups of layers of one form, whose gradients are preconditioned together, with as many kernels as one layer needs.

The caches of a group are copies in the form that suits the device: stacked, and inverses as dense matrices where that
is faster. They are made anew when a layer of the group adopts new caches or loads them. The layers' own Parameters are
what a checkpoint contains, so that it does not depend on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from mindspore import Parameter, Tensor, ops

from thor.curvature.layer import Layer, own_caches
from thor.runtime.parameters import PREFIX


class FormGroup:
    """Layers of one form, in the order of the optimizer.

    Args:
        indices: the layers' places among all layers.
        layers: the layers.
        together: Whether caches may be stacked, or made dense. False for a layer that stays alone, with its own
            caches: one that is large, or whose caches lie on another rank.

    Attributes:
        cell: what preconditions the gradients of the group.
        caches: what it does that with, the layers' behind one another.
    """

    def __init__(self, indices: tuple[int, ...], layers: Sequence[Layer], together: bool):
        self.indices, self.layers = indices, tuple(layers)
        self.caches, self._adoptions = layers[0].caches, self._adopted()
        self._caches_of: Callable[[Any], list[Tensor]] = own_caches
        self.cell = layers[0].preconditioner()
        if together:
            self.cell, self._caches_of = layers[0].in_group(len(layers))
        self._copies = len(layers) > 1 or self._caches_of is not own_caches
        if self._copies:
            self.caches = tuple(
                Parameter(stack, name=f"{PREFIX}form.{indices[0]}.{k}", requires_grad=False)
                for k, stack in enumerate(self._stacks())
            )

    def renew(self, loaded: bool = False) -> None:
        """Make the caches anew, if a layer has adopted new ones since, or if they were ``loaded``."""
        if self._copies and (loaded or self._adopted() != self._adoptions):
            for cache, stack in zip(self.caches, self._stacks(), strict=True):
                ops.assign(cache, stack)
            self._adoptions = self._adopted()

    def _adopted(self) -> tuple[int, ...]:
        return tuple(layer.adoptions for layer in self.layers)

    def _stacks(self) -> list[Tensor]:
        by_kind = zip(*(self._caches_of(layer) for layer in self.layers), strict=True)
        return [ops.concat(list(kind)) if len(kind) > 1 else kind[0].copy() for kind in by_kind]


def form_groups(layers: Sequence[Layer], stacks: Callable[[int], bool]) -> tuple[FormGroup, ...]:
    """The layers in groups: those of one form whose weights are ``stacks(numbers in a weight)``, the others one by one.

    A layer whose caches lie on another rank stays alone.
    """
    together = [layer.held and stacks(layer.weight.size) for layer in layers]
    members = alike([layer.form if together[i] else i for i, layer in enumerate(layers)])
    return tuple(FormGroup(each, [layers[i] for i in each], together[each[0]]) for each in members)


def alike(keys: Sequence[Hashable]) -> tuple[tuple[int, ...], ...]:
    """The indices of equal keys together, in the order in which each key comes first."""
    found: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return tuple(map(tuple, found.values()))
