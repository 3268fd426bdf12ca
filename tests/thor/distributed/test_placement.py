"""Theorems on placements: everything once, near the best possible, the same everywhere."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thor.distributed.placement import PER, FactorWork, Grid, Piece, divisors, place


@st.composite
def grids(draw, most=12):
    ranks = draw(st.integers(1, most))
    return Grid(ranks, draw(st.sampled_from(divisors(ranks))))


@st.composite
def works(draw, layers=6, blocks=5):
    """Layers with A and G; whole costs, so that sums are exact."""
    numbers = st.tuples(st.integers(1, blocks), st.integers(1, 50))
    pairs = draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=layers))
    return [
        FactorWork(i, side, count, cost)
        for i, pair in enumerate(pairs)
        for side, (count, cost) in zip("ag", pair, strict=True)
    ]


def loads(placement):
    """Summed cost of inverting, per rank."""
    return tuple(sum(p.cost for p in placement.pieces if p.rank == rank) for rank in range(placement.grid.ranks))


@given(works(), grids(), st.sampled_from(PER))
def test_every_block_is_inverted_once_in_the_layers_column(work, grid, per):
    placement = place(work, grid, per=per)
    found = [(p.layer, p.side, block) for p in placement.pieces for block in range(p.first, p.last)]
    assert found == [(f.layer, f.side, block) for f in work for block in range(f.blocks)]  # in a fixed order too
    assert all(grid.column_of(piece.rank) == placement.column_of[piece.layer] for piece in placement.pieces)
    costs = {(f.layer, f.side): f.cost for f in work}
    assert all(p.cost == (p.last - p.first) * costs[p.layer, p.side] for p in placement.pieces)
    assert sum(loads(placement)) == sum(f.blocks * f.cost for f in work)


@given(works(), grids())
def test_what_one_rank_takes_whole(work, grid):
    layers = place(work, grid, per="layer").pieces
    assert len(layers) == len(work)
    assert all(a.rank == g.rank for a, g in zip(layers[::2], layers[1::2], strict=True))
    assert len(place(work, grid, per="factor").pieces) == len(work)
    split = place(work, grid, per="block").pieces
    assert len({(p.layer, p.side, p.rank) for p in split}) == len(split)  # one run a factor and rank


def best_possible(costs, ranks):
    """The smallest largest load, by trying everything."""
    return min(
        max(sum(cost for cost, at in zip(costs, chosen, strict=True) if at == rank) for rank in range(ranks))
        for chosen in itertools.product(range(ranks), repeat=len(costs))
    )


@settings(max_examples=40)
@given(works(layers=3), st.integers(1, 3))
def test_the_largest_load_is_within_grahams_bound_of_the_best(work, ranks):
    grid = Grid(ranks, ranks)
    bound = 4 / 3 - 1 / (3 * ranks)
    factors = [f.blocks * f.cost for f in work]
    layers = [a + g for a, g in zip(factors[::2], factors[1::2], strict=True)]
    for per, costs in (("factor", factors), ("layer", layers)):
        assert max(loads(place(work, grid, per=per))) <= bound * best_possible(costs, ranks) * (1 + 1e-12)


@given(works(), grids())
def test_splitting_factors_is_never_worse_and_ends_within_a_block_of_even(work, grid):
    split, whole = (place(work, grid, per=per) for per in ("block", "factor"))
    assert split.column_of == whole.column_of
    for column in range(grid.columns):
        ranks = grid.column_ranks(column)
        shared = [loads(split)[rank] for rank in ranks]
        assert max(shared) <= max(loads(whole)[rank] for rank in ranks)
        own = [f.cost for f in work if split.column_of[f.layer] == column]
        assert max(shared) <= sum(shared) / len(ranks) + max(own, default=0)


def test_a_large_factor_is_split_evenly():
    """8 blocks on 4 ranks: two each, while whole it would keep one rank busy."""
    work = [FactorWork(0, "a", 8, 1.0)]
    pieces = place(work, Grid(4, 4), per="block").pieces
    assert pieces == tuple(Piece(0, "a", 2 * rank, 2 * rank + 2, rank, 2.0) for rank in range(4))
    assert loads(place(work, Grid(4, 4), per="factor")) == (8.0, 0.0, 0.0, 0.0)


def test_where_single_blocks_would_be_worse_nothing_is_split():
    """Blocks of 3, 3, 2, 2, 2 on two ranks: longest first gives 3 + 2 + 2 and 3 + 2, whole factors 6 and 6."""
    work = [FactorWork(0, "a", 2, 3.0), FactorWork(0, "g", 3, 2.0)]
    assert place(work, Grid(2, 2), per="block") == place(work, Grid(2, 2), per="factor")
    assert loads(place(work, Grid(2, 2), per="block")) == (6.0, 6.0)


@given(works(), grids(), st.sampled_from(PER), st.randoms(use_true_random=False))
def test_the_placement_does_not_depend_on_the_order_of_the_work(work, grid, per, rng: random.Random):
    shuffled = list(work)
    rng.shuffle(shuffled)
    assert place(shuffled, grid, per=per) == place(work, grid, per=per)


def test_ties_go_to_the_lower_index():
    work = [FactorWork(i, side, 1, 1.0) for i in range(4) for side in "ag"]
    assert place(work, Grid(4, 2)).column_of == (0, 1, 0, 1)
    assert [p.rank for p in place(work, Grid(4, 2)).pieces] == [0, 0, 1, 1, 2, 2, 3, 3]


@given(grids())
def test_a_grid_has_every_rank_in_one_row_and_one_column(grid):
    for rank in range(grid.ranks):
        row, column = grid.row_of(rank), grid.column_of(rank)
        assert rank == row * grid.columns + column
        assert set(grid.row_ranks(row)) & set(grid.column_ranks(column)) == {rank}
    everyone = list(range(grid.ranks))
    assert sorted(rank for row in range(grid.workers) for rank in grid.row_ranks(row)) == everyone
    assert sorted(rank for column in range(grid.columns) for rank in grid.column_ranks(column)) == everyone


@given(grids(64))
def test_every_grid_has_its_fraction(grid):
    assert Grid.from_fraction(grid.ranks, grid.workers / grid.ranks) == grid
    assert Grid.from_fraction(grid.ranks, 1.0).columns == 1
    assert Grid.from_fraction(grid.ranks, 0).workers == 1


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Grid.from_fraction(8, 0.6), ValueError, ("0.6 of 8 ranks is 5", "0.125, 0.25, 0.5, 1")),
        (lambda: Grid.from_fraction(8, 1.5), ValueError, ("grad_worker_fraction", "at least 0 and at most 1", "1.5")),
        (lambda: Grid.from_fraction(8, float("nan")), ValueError, ("grad_worker_fraction", "nan")),
        (lambda: Grid.from_fraction(8, "all"), TypeError, ("grad_worker_fraction must be a number", "'all'")),
        (lambda: Grid.from_fraction(0, 1.0), ValueError, ("ranks must be at least 1", "0")),
        (lambda: Grid(6, 4), ValueError, ("workers must divide the 6 ranks", "got 4", "1, 2, 3, 6")),
        (lambda: Grid(6, 0), ValueError, ("workers must be at least 1",)),
        (lambda: Grid(6, 2).row_of(6), IndexError, ("rank must lie between 0 and 5", "6")),
        (lambda: Grid(6, 2).column_of(-1), IndexError, ("rank must lie between 0 and 5", "-1")),
        (lambda: Grid(6, 2).row_ranks(2), IndexError, ("row must lie between 0 and 1", "2")),
        (lambda: Grid(6, 2).column_ranks(3), IndexError, ("column must lie between 0 and 2", "3")),
        (lambda: FactorWork(-1, "a", 1, 1.0), ValueError, ("layer must be at least 0", "-1")),
        (lambda: FactorWork(0, "b", 1, 1.0), ValueError, ("side must be one of a, g", "'b'")),
        (lambda: FactorWork(0, "a", 0, 1.0), ValueError, ("blocks must be at least 1", "0")),
        (lambda: FactorWork(0, "a", 1, float("inf")), ValueError, ("cost must be finite and at least 0", "inf")),
        (lambda: FactorWork(0, "a", 1, None), TypeError, ("cost must be a number", "None")),
        (lambda: place([], Grid(1, 1), per="rank"), ValueError, ("per must be one of layer, factor, block", "'rank'")),
        (lambda: place([FactorWork(0, "a", 1, 1.0)] * 2, Grid(1, 1)), ValueError, ("layer 0 side 'a' twice",)),
    ],
)
def test_errors_say_what_is_allowed(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
