"""Seeds of random operators in compiled graphs.

MindSpore starts an operator's random numbers anew in every graph, from the seed that the operator was made with. Two
graphs of one network would drop the same units, and a graph that is compiled again would repeat its first masks.

MindSpore may also start the random numbers of other graphs anew when a graph is freed, as when layers have stopped. It
has no means to set or to save the state of these random numbers, therefore a run that is resumed in another process
draws other masks than the run that was not interrupted, the same ones at every resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mindspore import nn
from mindspore.ops import Primitive

_SEED = "Seed1"
_LARGEST = 2**31 - 1


class DropoutSeeds:
    """The random operators that Cells hold, as ``nn.Dropout`` does, and the seeds that they were made with.

    An operator without a seed (``ms.set_seed`` was not called) differs from graph to graph already.
    """

    def __init__(self, cells: Iterable[nn.Cell]):
        held = (value for cell in cells for value in vars(cell).values())
        operators = {id(value): value for value in held if isinstance(value, Primitive) and _seeded(value)}
        self._operators = [(operator, int(operator.attrs[_SEED])) for operator in operators.values()]

    @contextmanager
    def numbered(self, number: int) -> Iterator[None]:
        """Let a graph that is compiled within the context draw random numbers of its own; 0 for those of the seed."""
        if not self._operators or not number:
            yield
            return
        for operator, seed in self._operators:
            operator.add_prim_attr(_SEED, (seed + number) % _LARGEST)
        try:
            yield
        finally:
            for operator, seed in self._operators:
                operator.add_prim_attr(_SEED, seed)


def _seeded(operator: Primitive) -> bool:
    """Whether an operator draws random numbers from a seed."""
    return any(operator.attrs.get(name) for name in ("Seed0", _SEED)) and _SEED in operator.attrs
