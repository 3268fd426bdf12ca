"""Hits among the highest scores, against sorting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scripts.training.evaluation import TOP, places_of

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 9))
FEW = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0])  # so that many are equal


@given(st.data(), SIZES)
def test_place_is_that_of_a_stable_sort_wherever_it_counts(data, size):
    scores = data.draw(arrays(np.float32, size, elements=FEW))
    labels = data.draw(arrays(np.int64, size[:1], elements=st.integers(0, size[1] - 1)))
    order = np.argsort(-scores, axis=-1, kind="stable")
    expected = np.argmax(order == labels[:, None], axis=-1)
    found = places_of(scores, labels)
    np.testing.assert_array_equal(np.minimum(found, TOP), np.minimum(expected, TOP))
    np.testing.assert_array_equal(found == 0, scores.argmax(-1) == labels)


def test_what_is_no_number_is_no_hit():
    broken = np.full((2, 9), np.nan, np.float32)
    np.testing.assert_array_equal(places_of(broken, np.array([0, 8])), [9, 9])
    scores = np.array([[1.0, np.nan, 0.5, np.nan]], np.float32)
    assert [int(places_of(scores, np.array([label]))[0]) for label in range(4)] == [2, 4, 3, 4]
