"""Which rank inverts which blocks, and which ranks precondition which layer (pure: no tensors).

The ranks stand in a grid, as in KAISA (Pauloski et al., "KAISA: An Adaptive Second-Order Optimizer Framework for Deep
Neural Networks", SC 2021). A layer belongs to one *column*: its ranks, the gradient workers, hold the layer's inverses
and precondition its gradient; each hands the result to the others in its *row*. One column of all ranks spends memory
and arithmetic and no message on the gradients; columns of one rank each spend as little memory as possible, and a
message a step on every layer.

    rank = row * columns + column        workers = 2, ranks = 6:   row 0:  0 1 2
                                                                   row 1:  3 4 5

Within a column, each block is inverted by one rank and sent to the others. Both choices, of a column and of a rank, go
by the longest processing time first (Graham, 1969), whose largest load is at most 4/3 - 1/(3 m) of the best one on m
ranks. Every rank computes the placement for itself, so the costs must be the same numbers on all of them.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from first_order.checks import check_int, number

SIDES = ("a", "g")
PER = ("layer", "factor", "block")


def block_cost(size: int) -> float:
    """What inverting a block weighs: its operations. Measured seconds differ, and every rank must place alike."""
    return float(size) ** 3


@dataclass(frozen=True)
class FactorWork:
    """One Kronecker factor to invert: ``blocks`` diagonal blocks (copies * count), each at ``cost``.

    ``layer`` is the index of its layer, ``side`` "a" or "g". The cost is of any unit (:func:`block_cost`).
    """

    layer: int
    side: str
    blocks: int
    cost: float

    def __post_init__(self) -> None:
        check_int("layer", self.layer, 0)
        if self.side not in SIDES:
            raise ValueError(f"side must be one of {', '.join(SIDES)}, but got {self.side!r}")
        check_int("blocks", self.blocks, 1)
        number("cost", self.cost, 0.0)


@dataclass(frozen=True)
class Grid:
    """Ranks in rows and columns. ``workers``, the gradient workers of a layer, are the rows, and must divide them."""

    ranks: int
    workers: int

    def __post_init__(self) -> None:
        check_int("ranks", self.ranks, 1)
        check_int("workers", self.workers, 1)
        if self.ranks % self.workers:
            raise ValueError(
                f"workers must divide the {self.ranks} ranks, but got {self.workers}; "
                f"give one of {_listed(divisors(self.ranks))}"
            )

    @property
    def columns(self) -> int:
        """Groups that share the layers among them."""
        return self.ranks // self.workers

    def row_of(self, rank: int) -> int:
        """The row of a rank: the ranks that it sends preconditioned gradients to, or gets them from."""
        return self._checked(rank) // self.columns

    def column_of(self, rank: int) -> int:
        """The column of a rank: the ranks that hold the same inverses."""
        return self._checked(rank) % self.columns

    def row_ranks(self, row: int) -> tuple[int, ...]:
        """A row's ranks, one of each column."""
        if not 0 <= row < self.workers:
            raise IndexError(f"row must lie between 0 and {self.workers - 1}, but got {row}")
        return tuple(range(row * self.columns, (row + 1) * self.columns))

    def column_ranks(self, column: int) -> tuple[int, ...]:
        """A column's ranks, one of each row."""
        if not 0 <= column < self.columns:
            raise IndexError(f"column must lie between 0 and {self.columns - 1}, but got {column}")
        return tuple(range(column, self.ranks, self.columns))

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank must lie between 0 and {self.ranks - 1}, but got {rank}")
        return rank

    @classmethod
    def from_fraction(cls, ranks: int, grad_worker_fraction: float) -> Grid:
        """The grid in which a share of all ranks holds each layer's inverses.

        Args:
            ranks: how many there are.
            grad_worker_fraction: 1 for all (one column), 1/ranks or 0 for one rank a layer; between,
                ranks * fraction, rounded, must divide the ranks.

        Raises:
            ValueError: with the fractions that are allowed.
        """
        check_int("ranks", ranks, 1)
        fraction = number("grad_worker_fraction", grad_worker_fraction, 0.0, 1.0)
        workers = max(1, round(ranks * fraction))
        if ranks % workers:
            raise ValueError(
                f"grad_worker_fraction {fraction:g} of {ranks} ranks is {workers}, which does not divide "
                f"them; give one of {_listed(f'{each / ranks:.4g}' for each in divisors(ranks))}"
            )
        return cls(ranks, workers)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return (*small, *(number // each for each in reversed(small) if each * each != number))


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)


@dataclass(frozen=True)
class Piece:
    """Blocks ``first`` to ``last - 1`` of a factor, inverted by one rank at a summed ``cost``."""

    layer: int
    side: str
    first: int
    last: int
    rank: int
    cost: float


@dataclass(frozen=True)
class Placement:
    """Who does what.

    Attributes:
        grid: the ranks.
        column_of: per layer, the column that holds its inverses and preconditions its gradient.
        pieces: every block of every factor exactly once, in the order of layer, side, first block.
    """

    grid: Grid
    column_of: tuple[int, ...]
    pieces: tuple[Piece, ...]


def place(
    work: Sequence[FactorWork],
    grid: Grid,
    *,
    per: str = "layer",
) -> Placement:
    """Give layers to columns, then factors to the ranks of their column, longest processing time first.

    Args:
        work: every factor once; a layer may lack one.
        grid: the ranks.
        per: what one rank takes whole: "layer" both factors of a layer, "factor" one factor, "block" one block, so
            that a factor may be split into runs of blocks. "block" is never worse than "factor".

    Returns:
        The same placement on every rank: ties go to the lower layer, side, column, rank.
    """
    if per not in PER:
        raise ValueError(f"per must be one of {', '.join(PER)}, but got {per!r}")
    factors = sorted(work, key=lambda factor: (factor.layer, factor.side))
    costs = [0.0] * _count_layers(factors)
    for factor in factors:
        costs[factor.layer] += factor.blocks * factor.cost
    column_of = tuple(_longest_first(costs, grid.columns))
    pieces: list[Piece] = []
    for column in range(grid.columns):
        own = [factor for factor in factors if column_of[factor.layer] == column]
        if own:
            pieces += _place_column(own, grid.column_ranks(column), per)
    pieces.sort(key=lambda piece: (piece.layer, piece.side, piece.first))
    return Placement(grid, column_of, tuple(pieces))


def _count_layers(factors: Sequence[FactorWork]) -> int:
    """How many layers there are, after a look at what was given."""
    for one, other in zip(factors, factors[1:], strict=False):
        if (one.layer, one.side) == (other.layer, other.side):
            raise ValueError(f"work must name each factor once, but has layer {one.layer} side {one.side!r} twice")
    return factors[-1].layer + 1 if factors else 0


def _place_column(factors: Sequence[FactorWork], ranks: Sequence[int], per: str) -> list[Piece]:
    """One column's factors on its ranks."""
    if per == "layer":
        sums: dict[int, float] = defaultdict(float)
        for factor in factors:
            sums[factor.layer] += factor.blocks * factor.cost
        bins = dict(zip(sums, _longest_first(list(sums.values()), len(ranks)), strict=True))
        return [_whole(factor, ranks[bins[factor.layer]]) for factor in factors]
    costs = [factor.blocks * factor.cost for factor in factors]
    whole = [_whole(factor, ranks[b]) for factor, b in zip(factors, _longest_first(costs, len(ranks)), strict=True)]
    if per == "factor":
        return whole
    # Longest first has anomalies: with smaller items it can end up worse. Then nothing is split.
    split = _split(factors, ranks)
    return split if max(_loads(split).values()) < max(_loads(whole).values()) else whole


def _whole(factor: FactorWork, rank: int) -> Piece:
    return Piece(factor.layer, factor.side, 0, factor.blocks, rank, factor.blocks * factor.cost)


def _split(factors: Sequence[FactorWork], ranks: Sequence[int]) -> list[Piece]:
    """Single blocks, longest first; a rank's blocks of one factor become one run."""
    bins = iter(_longest_first([f.cost for f in factors for _ in range(f.blocks)], len(ranks)))
    pieces: list[Piece] = []
    for factor in factors:
        counts = [0] * len(ranks)
        for _ in range(factor.blocks):
            counts[next(bins)] += 1
        first = 0
        for rank, count in zip(ranks, counts, strict=True):
            if count:
                pieces.append(Piece(factor.layer, factor.side, first, first + count, rank, count * factor.cost))
                first += count
    return pieces


def _loads(pieces: Sequence[Piece]) -> dict[int, float]:
    loads: dict[int, float] = defaultdict(float)
    for piece in pieces:
        loads[piece.rank] += piece.cost
    return loads


def _longest_first(costs: Sequence[float], bins: int) -> list[int]:
    """The bin of each item: items by falling cost, each to the bin with the least so far."""
    loads = [(0.0, each) for each in range(bins)]
    chosen = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, least = loads[0]
        chosen[item] = least
        heapq.heapreplace(loads, (load + costs[item], least))
    return chosen
