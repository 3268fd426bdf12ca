"""The crossing of two curves, and the candidate nearest to it."""

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from thor.profile.crossing import check_candidates, choose, default_candidates, kept_shares, performances, read_curves

# Read off the published figure of ResNet-50 on an Ascend 910, at the sizes that both curves have.
DIMS = [1, 64, 128, 256, 512, 1024]
KEPT = [0.07, 0.17, 0.25, 0.43, 0.59, 0.85]
PERFORMANCE = [1.0, 0.29, 0.17, 0.07, 0.03, 0.01]
READING_ERROR = 0.005  # two decimals were read


def published(shifts=(0, 0, 0, 0)):
    """The choice, with the four values between which the curves cross moved by whole reading errors."""
    kept, performance = list(KEPT), list(PERFORMANCE)
    for curve, index, shift in zip((kept, kept, performance, performance), (1, 2, 1, 2), shifts, strict=True):
        curve[index] += shift * READING_ERROR
    return choose(DIMS, kept, performance)


def test_the_published_curves_choose_128():
    crossing = published()
    assert crossing.chosen == 128
    assert crossing.dim == pytest.approx(64 + 64 * 0.12 / 0.20)  # 102.4: straight lines through rounded values


def test_the_published_crossing_is_within_the_reading_error_of_the_curves():
    """The paper states (106, 0.21). The crossing is monotone in each value, so corners bound what can be reached."""
    corners = [published(shifts) for shifts in itertools.product((-1, 0, 1), repeat=4)]
    reached = [crossing.dim for crossing in corners]
    assert min(reached) == pytest.approx(64 + 64 * 0.11 / 0.20)
    assert max(reached) == pytest.approx(64 + 64 * 0.13 / 0.20)
    assert round(max(reached)) == 106
    assert min(reached) < 106 - 3 < max(reached) < 106 + 3
    assert all(crossing.share == pytest.approx(0.21, abs=0.015) for crossing in corners)
    assert {crossing.chosen for crossing in corners} == {128}


@pytest.mark.parametrize(
    ("kept", "performance", "dim", "share", "chosen"),
    [
        ([0.0, 0.5, 1.0], [1.0, 0.5, 0.1], 10, 0.5, 10),  # at a candidate
        ([0.0, 0.4, 1.0], [1.0, 0.6, 0.0], 10 + 10 * 0.2 / 1.2, 0.5, 10),
        ([0.0, 0.1, 1.0], [1.0, 0.9, 0.0], 10 + 10 * 0.8 / 1.8, 0.5, 10),
        ([0.0, 0.2, 0.6], [0.8, 0.6, 0.2], 15, 0.4, 20),  # equally near: the larger, which loses less
        ([0.0, 0.9, 0.1], [0.6, 0.3, 0.4], 4 + 6 * 0.6 / 1.2, 0.45, 10),  # several crossings: the first
        ([0.5, 0.5, 0.5], [1.0, 0.5, 0.2], 10, 0.5, 10),  # flat
        ([0.3, 0.3, 0.9], [1.0, 0.3, 0.3], 10, 0.3, 10),
        ([0.5, 0.5, 1.0], [0.5, 0.5, 0.1], 4, 0.5, 4),  # equal over a stretch: its left end
        ([0.0, 0.5, 0.5], [1.0, 0.5, 0.5], 10, 0.5, 10),
        ([1.0, 1.0, 1.0], [1.0, 0.9, 0.8], 4, 1.0, 4),  # touching at an end
        ([0.0, 0.0, 0.1], [1.0, 0.9, 0.1], 20, 0.1, 20),
        ([1.0, 0.5, 0.0], [0.2, 0.3, 0.4], 10 + 10 * 0.2 / 0.6, 0.5 - 0.5 / 3, 10),  # kept falls: still a crossing
    ],
)
def test_hand_made_curves(kept, performance, dim, share, chosen):
    crossing = choose([4, 10, 20], kept, performance)
    assert (crossing.dim, crossing.share) == (pytest.approx(dim), pytest.approx(share))
    assert crossing.chosen == chosen


def test_curves_that_do_not_cross():
    above = choose([4, 10, 20], [0.9, 1.0, 1.0], [0.8, 0.3, 0.2])
    assert (above.dim, above.share, above.chosen) == (None, None, 4)
    assert "kept exceeds performance everywhere" in above.reason
    below = choose([4, 10, 20], [0.1, 0.1, 0.1], [1.0, 0.9, 0.5])
    assert (below.dim, below.share, below.chosen) == (None, None, 20)
    assert "performance exceeds kept everywhere" in below.reason


@st.composite
def curves(draw):
    dims = sorted(draw(st.sets(st.integers(1, 5000), min_size=2, max_size=8)))
    values = st.lists(st.floats(0, 1), min_size=len(dims), max_size=len(dims))
    return dims, draw(values), draw(values)


@given(curves())
def test_the_chosen_candidate_is_the_nearest_to_the_crossing(case):
    dims, kept, performance = case
    crossing = choose(*case)
    assert crossing.chosen in dims
    if crossing.dim is None:
        above = [k > p for k, p in zip(kept, performance, strict=True)]
        assert len(set(above)) == 1
        assert crossing.chosen == (dims[0] if above[0] else dims[-1])
    else:
        assert dims[0] <= crossing.dim <= dims[-1]
        assert min(kept) <= crossing.share <= max(kept) or crossing.share == pytest.approx(min(kept), abs=1e-12)
        nearest = min(abs(dim - crossing.dim) for dim in dims)
        assert abs(crossing.chosen - crossing.dim) <= nearest * (1 + 1e-9)  # what counts as a tie


@given(curves())
def test_a_rising_and_a_falling_curve_cross_between_the_candidates_around_their_change_of_sides(case):
    dims, kept, performance = case
    kept, performance = sorted(kept), sorted(performance, reverse=True)
    assume(kept[0] < performance[0] and kept[-1] > performance[-1])
    crossing = choose(dims, kept, performance)
    last_below = max(d for d, k, p in zip(dims, kept, performance, strict=True) if k < p)
    first_above = min(d for d, k, p in zip(dims, kept, performance, strict=True) if k > p)
    assert last_below <= crossing.dim <= first_above


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1, 2], [0.1], [1.0, 0.5]), ("one length", "2, 1 and 2")),
        (([1], [0.1], [1.0]), ("at least 2",)),
        (([2, 1], [0.1, 0.2], [1.0, 0.5]), ("ascend", "[2, 1]")),
        (([1, 1], [0.1, 0.2], [1.0, 0.5]), ("ascend", "[1, 1]")),
        (([1, 2], [0.1, float("nan")], [1.0, 0.5]), ("finite", "nan")),
        (([1, 2], [0.1, 0.2], [1.0, float("inf")]), ("finite", "inf")),
    ],
)
def test_curves_that_are_none_are_refused(arguments, words):
    with pytest.raises(ValueError) as caught:
        choose(*arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_factor_counts_as_kept_below_the_threshold_not_at_it():
    assert kept_shares([[0.5, 0.01], [0.009, 0.0], [0.01, 0.0], [0.0, 0.0]], 0.01) == [0.5, 0.75]
    with pytest.raises(ValueError, match="there are no factors"):
        kept_shares([], 0.01)


def test_performance_is_the_first_time_over_each():
    assert performances([2.0, 4.0, 1.0]) == [1.0, 0.5, 2.0]
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="times must be positive and finite"):
            performances([1.0, bad])


def test_default_candidates_are_the_papers_until_the_largest_factor_fits():
    assert default_candidates(2305) == [1, 16, 32, 64, 128, 256, 512, 1024, 2048]
    assert default_candidates(33) == [1, 16, 32, 64]
    assert default_candidates(64) == [1, 16, 32, 64]
    assert default_candidates(3) == [1, 16]
    assert check_candidates([64, 1, 64]) == [1, 64]


@pytest.mark.parametrize(
    ("dims", "error", "words"),
    [
        ([], ValueError, ("dims", "empty")),
        ([16], ValueError, ("dims", "at least two", "[16]")),
        ([16, 16], ValueError, ("dims", "at least two", "[16]")),
        ([0, 16], ValueError, ("dims", "at least 1", "got 0")),
        ([-4, 16], ValueError, ("dims", "at least 1", "got -4")),
        ([1.5, 16], TypeError, ("dims", "int", "1.5")),
        (["16", 1], TypeError, ("dims", "int", "'16'")),
        ([True, 16], TypeError, ("dims", "int", "True")),
    ],
)
def test_wrong_candidates_are_refused(dims, error, words):
    with pytest.raises(error) as caught:
        check_candidates(dims)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def written(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "curves.csv"
    path.write_bytes(text.encode(encoding))
    return path


def test_curves_are_read_in_any_order_of_rows_and_columns(tmp_path):
    text = "note,time,dim,kept\nb,4.0,64,0.5\na,2.0,1,0.25\n"
    assert read_curves(written(tmp_path, text)) == ([1, 64], [0.25, 0.5], [1.0, 0.5])


def test_performance_is_taken_as_it_is_and_spaces_and_a_byte_order_mark_do_no_harm(tmp_path):
    text = "dim, kept, performance\r\n1, 0.25, 0.9\r\n64, 0.5, 0.4\r\n"
    assert read_curves(written(tmp_path, text, "utf-8-sig")) == ([1, 64], [0.25, 0.5], [0.9, 0.4])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("header", "dim, kept and time")),
        ("dim,share,time\n1,0.1,1\n", ("header", "dim, kept and time")),
        ("dim,kept\n1,0.1\n", ("header", "time (or performance)")),
        ("dim,kept,time\n", ("at least two", "has 0")),
        ("dim,kept,time\n1,0.1,1\n", ("at least two", "has 1")),
        ("dim,kept,time\n1,0.1,1\n16,0.2\n", ("line 3", "two numbers")),
        ("dim,kept,time\n1.5,0.1,1\n", ("line 2", "an integer", "1.5")),
        ("dim,kept,time\n1,much,1\n", ("line 2", "much")),
        ("dim,kept,time\n0,0.1,1\n16,0.2,2\n", ("dim", "at least 1", "got 0")),
        ("dim,kept,time\n16,0.1,1\n16,0.2,2\n", ("dim 16", "twice")),
        ("dim,kept,time\n1,10,1\n16,20,2\n", ("kept", "between 0 and 1", "20.0")),
        ("dim,kept,time\n1,nan,1\n16,0.5,2\n", ("kept", "between 0 and 1", "nan")),
        ("dim,kept,time\n1,0.1,0\n16,0.2,2\n", ("time", "positive", "0.0")),
        ("dim,kept,time\n1,0.1,1\n16,0.2,inf\n", ("time", "finite", "inf")),
        ("dim,kept,performance\n1,0.1,nan\n16,0.2,1\n", ("performance", "finite", "nan")),
    ],
)
def test_a_wrong_table_is_refused_with_its_path(text, words, tmp_path):
    path = written(tmp_path, text)
    with pytest.raises(ValueError) as caught:
        read_curves(path)
    assert all(word in str(caught.value) for word in (str(path), *words)), str(caught.value)


def test_a_table_that_cannot_be_read_is_refused_with_its_path(tmp_path):
    with pytest.raises(ValueError, match="missing.csv: no such file$"):
        read_curves(tmp_path / "missing.csv")
    with pytest.raises(ValueError, match="curves.csv: cannot be read"):
        read_curves(written(tmp_path, "dim,kept,time\n1,0.1,\u00e9\n", "latin-1"))
