import pytest
from hypothesis import given
from hypothesis import strategies as st

from thor.factors.blocks import BlockPlan, Cut, even_cut

SIZES = st.integers(1, 5000)


@given(SIZES, SIZES)
def test_an_even_cut_covers_every_row_with_as_few_blocks_as_possible(dim, block_size):
    size, count = even_cut(dim, block_size)
    assert size * count >= dim
    assert size <= block_size
    assert count == -(-dim // block_size)


@given(SIZES, SIZES)
def test_an_even_cut_pads_less_than_eight_rows_a_block(dim, block_size):
    size, count = even_cut(dim, block_size)
    assert size * count - dim < 8 * count


@given(SIZES)
def test_a_factor_that_fits_one_block_is_not_padded(dim):
    assert even_cut(dim, dim) == (dim, 1)
    assert even_cut(dim, dim + 1) == (dim, 1)


def test_blocks_are_even_and_aligned():
    assert even_cut(785, 128) == (112 + 8, 7)
    assert even_cut(10, 4) == (4, 3)
    assert even_cut(9, 4) == (3, 3)


def test_a_whole_factor_keeps_nothing_beside_its_block():
    for split in ("block", "block+mean", "block+rank"):
        assert BlockPlan(block_size=64, split=split).cut(64) == Cut(64, 64, 1, "block", 0)


def test_what_a_cut_factor_keeps_beside_its_blocks():
    assert BlockPlan(block_size=4, split="block").cut(10) == Cut(10, 4, 3)
    assert BlockPlan(block_size=4, split="block+mean").cut(10) == Cut(10, 4, 3, "block+mean", 1)
    assert BlockPlan(block_size=4, split="block+rank", rank=3).cut(10) == Cut(10, 4, 3, "block+rank", 3)
    assert BlockPlan(block_size=4, split="block+rank", rank=99).cut(10).rank == 10


def test_an_inverse_of_few_blocks_is_kept_whole_where_that_takes_few_operations():
    plan = BlockPlan()
    kept = plan.cut(251, bias=True, across=500)  # 2 x 500 x 251 x 126 operations more: 32 million
    assert kept == Cut(251, 125, 2, "block+mean", 1, bias_apart=True, whole_inverse=True)
    assert kept.cache_shapes(3) == ((3, 1, 251, 251), (1,), (1,))
    assert kept.estimate_shapes(3) == ((3, 2, 125, 125), (3, 251, 1), (3, 251, 1), (1,))
    assert not plan.cut(251, bias=True).whole_inverse  # nobody said what it multiplies
    assert not plan.cut(500, across=1000).whole_inverse  # 375 million
    assert not plan.cut(513, across=1).whole_inverse  # five blocks
    for never in (plan.cut(128, across=1), BlockPlan(split="block").cut(250, across=1)):
        assert not never.whole_inverse  # nothing beside the blocks: nothing to save


def test_the_first_matching_exception_wins():
    plan = BlockPlan(block_size=100, split="block", layers={"^head": 8, "head.*": 4, "tail$": 16})
    assert plan.cut(64, "head.dense").size == 8
    assert plan.cut(64, "body.head").size == 4
    assert plan.cut(64, "body.tail").size == 16
    assert plan.cut(64, "body").size == 64


def test_a_pair_of_sizes_is_for_the_two_factors_of_a_layer():
    plan = BlockPlan(block_size=100, split="block", layers={"^head$": (8, 16), "tail": 4})
    assert [plan.block_size_of("head", side) for side in "ag"] == [8, 16]
    assert [plan.cut(64, "head", side).size for side in "ag"] == [8, 16]
    assert [plan.cut(64, "tail", side).size for side in "ag"] == [4, 4]
    assert [plan.cut(64, "body", side).size for side in "ag"] == [64, 64]


def test_a_plan_describes_itself():
    assert BlockPlan(order="position").describe() == "block_size=128, split='block+mean', order='position'"
    assert BlockPlan(split="block+rank", rank=5, layers={"x": 1}).describe() == (
        "block_size=128, split='block+rank', rank=5, 1 exceptions"
    )


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"block_size": 0}, ValueError, ("block_size", "0", "at least 1")),
        ({"block_size": 2.0}, TypeError, ("block_size", "2.0", "int")),
        ({"block_size": True}, TypeError, ("block_size", "True", "int")),
        ({"rank": 0}, ValueError, ("rank", "0", "at least 1")),
        ({"split": "rows"}, ValueError, ("split", "'rows'", "block+mean")),
        ({"layers": {"(": 4}}, ValueError, ("layers", "'('", "regular expression")),
        ({"layers": {"a": 0}}, ValueError, ("block_size", "'a'", "at least 1")),
        ({"layers": {"a": (4, 0)}}, ValueError, ("block_size", "'a'", "at least 1", "0")),
        ({"layers": {"a": (4, 4, 4)}}, ValueError, ("layers", "'a'", "a pair for A and G", "(4, 4, 4)")),
        ({"layers": {"a": (4, 2.5)}}, TypeError, ("block_size", "'a'", "int", "2.5")),
        ({"layers": {"a": [4, 4]}}, TypeError, ("block_size", "'a'", "int", "[4, 4]")),
        ({"order": "kernel"}, ValueError, ("order", "'kernel'", "channel, position")),
    ],
)
def test_a_wrong_plan_is_refused_with_name_value_and_what_is_allowed(options, error, words):
    with pytest.raises(error) as caught:
        BlockPlan(**options)
    assert all(word in str(caught.value) for word in words)
