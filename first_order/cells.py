"""What MindSpore's Cells do not offer: plain attributes past their registration, and their own members."""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, nn


def set_unregistered(cell: nn.Cell, **values: Any) -> None:
    """Set attributes of a Cell as plain Python attributes.

    ``nn.Cell`` registers a Cell or a Parameter that is assigned to it: the value becomes a child, with a name and a
    place in checkpoints of its own, and tuples and dictionaries are checked and wrapped. An attribute that only points
    to a Cell or a Parameter of somebody else, or that holds plain host-side data, goes past this registration.
    """
    for name, value in values.items():
        object.__setattr__(cell, name, value)


def delete_unregistered(cell: nn.Cell, name: str) -> None:
    """Delete an attribute that :func:`set_unregistered` has set."""
    object.__delattr__(cell, name)


def own_members(cell: nn.Cell) -> dict[str, Parameter | nn.Cell | None]:
    """The Parameters and children of a Cell itself, by the name of the attribute; None where one is empty.

    A new dictionary at every call: a CellList makes another one of its own when a child is deleted.
    """
    return {**cell._params, **cell._cells}


def own_parameters(cell: nn.Cell) -> list[Parameter]:
    """The Parameters of a Cell itself, without those of its children."""
    return [parameter for parameter in cell._params.values() if parameter is not None]
