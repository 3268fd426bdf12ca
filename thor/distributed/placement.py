"""Which rank inverts which blocks, and which ranks precondition which layer (pure: no tensors).

The ranks form a grid, as in KAISA (Pauloski et al., "KAISA: An Adaptive Second-Order Optimizer Framework for Deep
Neural Networks", SC 2021). Each layer belongs to one *column*. The ranks of that column, its gradient workers, hold the
layer's inverses and precondition its gradient, and each sends the result to the other ranks of its *row*. A single
column of all ranks needs the most memory and arithmetic, but sends no directions. Columns of one rank need the least
memory, but send the direction of every layer at every step.

    rank = row * columns + column        workers = 2, ranks = 6:   row 0:  0 1 2
                                                                   row 1:  3 4 5

Within a column, each block is inverted by one rank and sent to the others. Layers are assigned to columns, and blocks
to ranks, by the rule *longest processing time first* (Graham, 1969): its largest load is at most 4/3 - 1/(3 m) times
the optimal one on m ranks. Every rank computes the placement for itself, so all ranks must use the same costs.
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
    """Cost of inverting a block of ``size`` rows: size^3, proportional to its arithmetic operations.

    Measured seconds would differ between ranks, which must all compute the same placement.
    """
    return float(size) ** 3


@dataclass(frozen=True)
class FactorWork:
    """One Kronecker factor to invert.

    Attributes:
        layer: index of the layer.
        side: "a" or "g".
        blocks: number of diagonal blocks, copies * count.
        cost: of inverting one block, in any unit (see :func:`block_cost`).
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
    """Ranks in rows and columns.

    Attributes:
        ranks: number of ranks.
        workers: gradient workers of each layer, which is the number of rows; must divide ``ranks``.
    """

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
        """The number of columns."""
        return self.ranks // self.workers

    def row_of(self, rank: int) -> int:
        """The row of a rank, within which preconditioned gradients are exchanged."""
        return self._checked(rank) // self.columns

    def column_of(self, rank: int) -> int:
        """The column of a rank, whose ranks all hold the same inverses."""
        return self._checked(rank) % self.columns

    def row_ranks(self, row: int) -> tuple[int, ...]:
        """The ranks of a row, one of each column."""
        if not 0 <= row < self.workers:
            raise IndexError(f"row must lie between 0 and {self.workers - 1}, but got {row}")
        return tuple(range(row * self.columns, (row + 1) * self.columns))

    def column_ranks(self, column: int) -> tuple[int, ...]:
        """The ranks of a column, one of each row."""
        if not 0 <= column < self.columns:
            raise IndexError(f"column must lie between 0 and {self.columns - 1}, but got {column}")
        return tuple(range(column, self.ranks, self.columns))

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank must lie between 0 and {self.ranks - 1}, but got {rank}")
        return rank

    @classmethod
    def from_fraction(cls, ranks: int, grad_worker_fraction: float) -> Grid:
        """The grid in which the given fraction of all ranks holds each layer's inverses.

        Args:
            ranks: number of ranks.
            grad_worker_fraction: 1 for all ranks (one column); 1 / ranks or 0 for one rank per layer. For values
                between, ranks * fraction, rounded, must divide ``ranks``.

        Raises:
            ValueError: if the number of gradient workers does not divide ``ranks``; the message lists the allowed
                fractions.
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
    """All divisors of ``number``, ascending."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return (*small, *(number // each for each in reversed(small) if each * each != number))


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)


@dataclass(frozen=True)
class Piece:
    """Blocks ``first`` to ``last - 1`` of a factor, which ``rank`` inverts; ``cost`` is the sum of their costs."""

    layer: int
    side: str
    first: int
    last: int
    rank: int
    cost: float


@dataclass(frozen=True)
class Placement:
    """Which rank inverts which blocks, and which column holds which layer.

    Attributes:
        grid: the ranks.
        column_of: for each layer, the column that holds its inverses and preconditions its gradient.
        pieces: every block of every factor exactly once, ordered by layer, side and first block.
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
    """Assign layers to columns, then factors to the ranks of their column, longest processing time first.

    Args:
        work: every factor once; a layer may have only one of the two.
        grid: the ranks.
        per: the unit that one rank inverts: "layer" for both factors of a layer, "factor" for one factor, "block" for
            one block. With "block" the blocks of a factor may go to several ranks, as consecutive runs; the largest
            load is never larger than with "factor".

    Returns:
        The placement, the same on every rank: ties go to the lower layer, side, column and rank.
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
    """The number of layers; raises ValueError if a factor is named twice."""
    for one, other in zip(factors, factors[1:], strict=False):
        if (one.layer, one.side) == (other.layer, other.side):
            raise ValueError(f"work must name each factor once, but has layer {one.layer} side {one.side!r} twice")
    return factors[-1].layer + 1 if factors else 0


def _place_column(factors: Sequence[FactorWork], ranks: Sequence[int], per: str) -> list[Piece]:
    """The pieces of one column's factors, assigned to the ranks of the column."""
    if per == "layer":
        sums: dict[int, float] = defaultdict(float)
        for factor in factors:
            sums[factor.layer] += factor.blocks * factor.cost
        bins = dict(zip(sums, _longest_first(list(sums.values()), len(ranks)), strict=True))
        return [_undivided(factor, ranks[bins[factor.layer]]) for factor in factors]
    costs = [factor.blocks * factor.cost for factor in factors]
    undivided = [
        _undivided(factor, ranks[b]) for factor, b in zip(factors, _longest_first(costs, len(ranks)), strict=True)
    ]
    if per == "factor":
        return undivided
    # Longest processing time first can give a larger load with smaller items. Factors are then not split.
    split = _split(factors, ranks)
    return split if max(_loads(split).values()) < max(_loads(undivided).values()) else undivided


def _undivided(factor: FactorWork, rank: int) -> Piece:
    return Piece(factor.layer, factor.side, 0, factor.blocks, rank, factor.blocks * factor.cost)


def _split(factors: Sequence[FactorWork], ranks: Sequence[int]) -> list[Piece]:
    """The pieces when single blocks are assigned; each rank's blocks of one factor form one consecutive run."""
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
    """The summed cost of each rank that has pieces."""
    loads: dict[int, float] = defaultdict(float)
    for piece in pieces:
        loads[piece.rank] += piece.cost
    return loads


def _longest_first(costs: Sequence[float], bins: int) -> list[int]:
    """The bin of each item: items in order of falling cost, each in the bin with the smallest load so far."""
    loads = [(0.0, each) for each in range(bins)]
    chosen = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, least = loads[0]
        chosen[item] = least
        heapq.heapreplace(loads, (load + costs[item], least))
    return chosen
