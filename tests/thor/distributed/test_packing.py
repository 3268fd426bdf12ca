import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from thor.distributed.packing import packed, packed_length, runs, triangle, unpacked


@given(st.integers(1, 20), st.integers(1, 5))
def test_triangles_come_back_as_they_were(size, count):
    rng = np.random.default_rng(size)
    blocks = rng.standard_normal((count, size, size)).astype(np.float32)
    blocks = blocks + blocks.transpose(0, 2, 1)
    flat = packed(blocks)
    assert flat.shape == (packed_length(count, size),)
    np.testing.assert_array_equal(unpacked(flat, size), blocks)


def test_a_triangle_is_read_from_above_and_made_symmetric():
    pack, unpack = triangle(2)
    np.testing.assert_array_equal(np.array([1.0, 2.0, 9.0, 3.0])[pack], [1, 2, 3])
    np.testing.assert_array_equal(np.array([1.0, 2.0, 3.0])[unpack], [1, 2, 2, 3])


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60))
def test_runs_cover_everything_in_order_within_the_limit(lengths, limit):
    found = runs(lengths, limit)
    assert [i for first, last in found for i in range(first, last)] == list(range(len(lengths)))
    for first, last in found:
        assert last == first + 1 or sum(lengths[first:last]) <= limit
    for (first, last), (_, end) in zip(found, found[1:], strict=False):
        assert sum(lengths[first:last]) + lengths[last] > limit or end == last, "as few as possible"
