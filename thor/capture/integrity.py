"""Check that a network is still the one that THOR was attached to: the same Cells and Parameters, object by object.

A compiled step keeps using the Cells that it was compiled from: after a layer was replaced, it would silently train the
old one. Therefore the network's members are compared before every step, by identity, which costs little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from mindspore import Parameter, nn

from first_order.cells import own_members, own_parameters
from thor.capture.attach import PORTS, holds, tapped_cells

CURE = "make a new THOR for the changed network (thor.detach(net) first)"


def refuse_attached(net: nn.Cell, weights: Iterable[Parameter]) -> None:
    """Raise ValueError if another THOR has a layer with one of these weights; it may have others beside them."""
    mine = {id(weight) for weight in weights}
    attached = [name for name, cell in tapped_cells(net) if any(id(p) in mine for p in own_parameters(cell))]
    if attached:
        raise ValueError(
            f"net is attached to a THOR optimizer already (layer {attached[0]} and {len(attached) - 1} more); "
            f"call thor.detach(net) first, or leave their weights out of params"
        )


def refuse_others(net: nn.Cell, layers: Iterable[CapturedLayer]) -> None:
    """Raise ValueError if another THOR than the one with these layers is attached to the network."""
    mine = {id(cell) for layer in layers for cell in layer.cells}
    other = next((name for name, cell in tapped_cells(net) if id(cell) not in mine), None)
    if other is not None:
        raise ValueError(
            f"block_size='auto' measures a network without other optimizers, and layer {other} belongs to another "
            f"THOR: give this one a number as block_size"
        )


class CapturedLayer(Protocol):
    """What is compared of a captured layer (:class:`thor.curvature.layer.Layer`)."""

    name: str
    cells: tuple[nn.Cell, ...]
    weight: Parameter


class NetworkIntegrity:
    """Snapshot of a network: the members of its Cells, and its captured layers."""

    def __init__(self, net: nn.Cell, layers: Iterable[CapturedLayer]):
        self.net, self.layers = net, tuple(layers)
        self.members = [(name, cell, own_members(cell)) for name, cell in net.cells_and_names()]
        self.ports = [
            (vars(cell), slot, vars(cell)[slot])
            for layer in self.layers for cell in layer.cells for slot in PORTS if vars(cell).get(slot) is not None
        ]  # fmt: skip

    def check(self) -> None:
        """Raise RuntimeError if a Cell or Parameter was added, removed or replaced, or a layer detached."""
        captured = all(slots.get(slot) is port for slots, slot, port in self.ports)
        if captured and all(_same(own_members(cell), then) for _, cell, then in self.members):
            return
        self._check_layers()
        if not captured:
            raise RuntimeError("the network belongs to another THOR optimizer, which was made after this one")
        members = ((name, own_members(cell), then) for name, cell, then in self.members)
        changes = (_change(name, now, then) for name, now, then in members if not _same(now, then))
        raise RuntimeError(f"the network has changed since THOR was attached: {next(changes)}; {CURE}")

    def _check_layers(self) -> None:
        """Raise RuntimeError, naming the layer, if a captured layer was replaced or detached or has another weight."""
        present = {id(cell) for _, cell in tapped_cells(self.net)}
        for layer in self.layers:
            if any(id(cell) not in present for cell in layer.cells):
                raise RuntimeError(
                    f"layer {layer.name} is no longer part of the network: it was replaced or detached after THOR "
                    f"was attached; {CURE}"
                )
            if not all(holds(cell, layer.weight) for cell in layer.cells):
                raise RuntimeError(f"layer {layer.name} has a new weight Parameter since THOR was attached; {CURE}")


def _same(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    return len(now) == len(then) and all(now.get(key) is value for key, value in then.items())


def _change(name: str, now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """Describe the first difference in one Cell's members."""
    place = name or "the network itself"
    added = next((key for key in now if key not in then), None)
    if added is not None:
        return f"{place} has a new member {added} ({type(now[added]).__name__})"
    gone = next((key for key in then if key not in now), None)
    if gone is not None:
        return f"{place} has lost its member {gone} ({type(then[gone]).__name__})"
    replaced = next(key for key in then if now[key] is not then[key])
    return f"{place} has another {replaced} ({type(now[replaced]).__name__})"
