"""What a graph was compiled for besides its inputs: flags of Cells and weights, and plain attributes of Cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from mindspore import Parameter, nn

#: Values that a compiler takes for constants, and that can be compared at every step.
_CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Flags:
    """What a graph is compiled for besides the shapes of its inputs.

    Attributes:
        training: of each Cell of the network and of the loss, whether it is in training mode.
        trains: of each weight of the optimizer, whether it has ``requires_grad``.
        constants: numbers, texts and truth values that the Cells' own code reads from their attributes.
    """

    training: tuple[bool, ...]
    trains: tuple[bool, ...]
    constants: tuple[Any, ...] = ()


class FlagWatch:
    """Reads the present flags.

    An attribute is watched if a method of its Cell names it as ``self.attribute`` and it holds a number, a text or a
    truth value when the watch begins. What operators of MindSpore hold, as the rate of ``nn.Dropout``, is not.

    Args:
        cells: the Cells that graphs use, with their names.
        weights: the weights of the optimizer.
        constants: whether attributes are watched; an uncompiled step obeys them anyway.
    """

    def __init__(self, cells: Sequence[tuple[str, nn.Cell]], weights: Sequence[Parameter], constants: bool):
        self.cells, self.weights = [cell for _, cell in cells], weights
        found = ((cell, name, each) for name, cell in cells for each in _constants_read_by(cell) if constants)
        self._watched = [(vars(cell), each, f"{name}.{each}".lstrip(".")) for cell, name, each in found]

    def flags(self) -> Flags:
        """The present flags."""
        return Flags(
            tuple(cell.training for cell in self.cells),
            tuple(weight.requires_grad for weight in self.weights),
            tuple(attributes.get(name) for attributes, name, _ in self._watched),
        )

    def difference(self, one: Flags, other: Flags) -> str:
        """The name of the first attribute or weight, or "training", in which two flags differ."""
        for (_, _, name), x, y in zip(self._watched, one.constants, other.constants, strict=True):
            if x != y:
                return name
        for weight, x, y in zip(self.weights, one.trains, other.trains, strict=True):
            if x != y:
                return f"{weight.name}.requires_grad"
        return "training"


def _constants_read_by(cell: nn.Cell) -> Iterator[str]:
    """The attributes that a Cell's methods may read and that hold constants."""
    attributes, names = vars(cell), set(_names_in(_methods_of(cell)))
    for name in sorted(names & attributes.keys()):
        if name != "training" and isinstance(attributes[name], _CONSTANTS):
            yield name


def _methods_of(cell: nn.Cell) -> Iterator[FunctionType]:
    """The methods that the classes of a Cell define below ``nn.Cell``, except its construction."""
    for base in type(cell).__mro__:
        if base is nn.Cell:
            return
        for name, value in vars(base).items():
            if isinstance(value, FunctionType) and not name.startswith("__"):
                yield value


def _names_in(functions: Iterable[FunctionType]) -> Iterator[str]:
    for function in functions:
        yield from function.__code__.co_names
