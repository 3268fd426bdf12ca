import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.data.source import PADDING, Order, generator
from thor.runtime.errors import UserError


def _ranks(epoch=0, **options):
    """Batches of all ranks: [ranks][batches of a rank]."""
    return [list(Order(rank=rank, **options).batches(epoch)) for rank in range(options["ranks"])]


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 70), batch_size=st.integers(1, 9), ranks=st.integers(1, 4), epoch=st.integers(0, 3))
def test_ranks_train_on_disjoint_examples_and_equally_many_batches(count, batch_size, ranks, epoch):
    parts = _ranks(epoch, count=count, batch_size=batch_size, ranks=ranks, seed=3)
    steps = count // (batch_size * ranks)
    assert [len(part) for part in parts] == [steps] * ranks
    seen = np.array(parts).reshape(-1)
    assert len(set(seen.tolist())) == len(seen) == steps * batch_size * ranks
    assert set(seen.tolist()) <= set(range(count))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 70), batch_size=st.integers(1, 9), ranks=st.integers(1, 4))
def test_ranks_evaluate_every_example_once_in_equally_many_batches(count, batch_size, ranks):
    parts = _ranks(count=count, batch_size=batch_size, ranks=ranks, training=False)
    assert len({len(part) for part in parts}) == 1
    assert all(len(chosen) == batch_size for part in parts for chosen in part)
    seen = np.array(parts).reshape(-1)
    assert sorted(seen[seen != PADDING].tolist()) == list(range(count))
    assert np.count_nonzero(seen == PADDING) < batch_size * ranks


def test_ranks_together_see_the_global_batch_of_one_process():
    one = list(Order(count=48, batch_size=8, seed=1).batches(2))
    parts = _ranks(2, count=48, batch_size=4, seed=1, ranks=2)
    for whole, first, second in zip(one, *parts, strict=True):
        assert np.array_equal(whole, np.concatenate([first, second]))


def test_order_depends_on_seed_and_epoch_and_a_start_only_skips():
    order = Order(count=30, batch_size=4, seed=1)
    whole = list(order.batches(5))
    assert np.array_equal(whole, list(Order(count=30, batch_size=4, seed=1).batches(5)))
    assert not np.array_equal(whole, list(order.batches(6)))
    assert not np.array_equal(whole, list(Order(count=30, batch_size=4, seed=2).batches(5)))
    for start in (0, 3, 7):
        assert np.array_equal(list(order.batches(5, start)), whole[start:])


def test_streams_of_random_numbers_are_apart():
    draws = [generator(*key).random() for key in [(1, 2, 0), (1, 2, 1), (2, 1, 0), (1, 2, 1, 3), (1, 2, 1, 7)]]
    assert len(set(draws)) == 5
    assert generator(1, 2, 0).random() == draws[0]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "batch_size must be at least 1, and is 0"),
        ({"batch_size": 4, "ranks": 0}, "ranks must be at least 1, and is 0"),
        ({"batch_size": 4, "ranks": 2, "rank": 2}, "rank must be 0 to 1 with 2 ranks, and is 2"),
        ({"batch_size": 4, "rank": -1}, "rank must be 0 to 0 with 1 ranks, and is -1"),
    ],
)
def test_impossible_shares_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Order(count=10, **options)
