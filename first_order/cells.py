"""Attributes of a Cell that MindSpore would register, set without that."""

from __future__ import annotations

from typing import Any

from mindspore import nn


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
