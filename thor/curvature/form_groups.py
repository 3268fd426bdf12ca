"""Groups of layers of one form, whose gradients are preconditioned together, with as many kernels as one layer needs.

The caches of a group are stacked in one Parameter each. They are copies, made anew when a layer of the group adopts new
caches or loads them; the layers' own Parameters are what a checkpoint contains, so that it does not depend on how a
device groups the layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Parameter, ops

from thor.curvature.layer import Layer


class FormGroup:
    """Layers of one form, in the order of the optimizer.

    Args:
        indices: the layers' places among all layers.
        layers: the layers; a single one is preconditioned with its own caches.

    Attributes:
        caches: what the gradients of the group are preconditioned with, the layers' behind one another.
    """

    def __init__(self, indices: tuple[int, ...], layers: Sequence[Layer]):
        self.indices, self.layers = indices, tuple(layers)
        self.cell = layers[0].preconditioner(len(layers))
        self.caches = layers[0].caches
        self._adoptions: tuple[int, ...] = ()
        if len(layers) > 1:
            self.caches = tuple(
                Parameter(stack, name=f"form.{indices[0]}.{k}", requires_grad=False)
                for k, stack in enumerate(self._stacks())
            )
            self._adoptions = self._adopted()

    def renew(self, loaded: bool = False) -> None:
        """Stack the layers' caches again, if a layer has adopted new ones since, or if they were ``loaded``."""
        if len(self.layers) > 1 and (loaded or self._adopted() != self._adoptions):
            for cache, stack in zip(self.caches, self._stacks(), strict=True):
                ops.assign(cache, stack)
            self._adoptions = self._adopted()

    def _adopted(self) -> tuple[int, ...]:
        return tuple(layer.adoptions for layer in self.layers)

    def _stacks(self):
        by_kind = zip(*(layer.caches for layer in self.layers), strict=True)
        return [ops.concat([cache.value() for cache in kind]) for kind in by_kind]


def form_groups(layers: Sequence[Layer], together: bool) -> tuple[FormGroup, ...]:
    """The layers in groups: those of one form, if ``together``, else one by one.

    A layer whose caches lie on another rank stays alone.
    """
    by_form: dict[object, list[int]] = {}
    for i, layer in enumerate(layers):
        by_form.setdefault(layer.form if together and layer.held else i, []).append(i)
    return tuple(FormGroup(tuple(each), [layers[i] for i in each]) for each in by_form.values())
