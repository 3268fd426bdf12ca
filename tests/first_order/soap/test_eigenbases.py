"""The parts of SOAP: merged shapes, matrices of the axes, rotations and eigenbases."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor

from first_order.soap.eigenbases import (  # fmt: skip
    axes_of,
    first_basis,
    gram,
    merged_shape,
    next_basis,
    renewed,
    rotated,
    rotated_back,
)
from tests.first_order.arrays import arrays, tensors
from tests.first_order.soap.reference import others, turn

SHAPES = [(4, 3), (3, 2, 4), (2, 3, 1, 5), (4, 3, 3, 2), (6,), (5, 1), (1, 5)]


def symmetric(seed, size, dtype=np.float64):
    """A matrix with known eigenvalues, from 1 to 100."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return (q * np.geomspace(100, 1, size) @ q.T).astype(dtype), q


@settings(max_examples=200, deadline=None)
@given(shape=st.lists(st.integers(1, 12), min_size=2, max_size=5), limit=st.integers(1, 200))
def test_merged_axes_stay_within_the_limit(shape, limit):
    merged = merged_shape(tuple(shape), limit, True)
    assert np.prod(merged) == np.prod(shape)
    assert all(n <= limit or n in shape for n in merged)
    assert merged_shape(tuple(shape), limit, False) == tuple(shape)


@pytest.mark.parametrize(
    ("shape", "limit", "merged"),
    [
        ((64, 32, 3, 3), 1024, (64, 288)),
        ((64, 32, 3, 3), 10000, (6144, 3)),
        ((16, 3, 3, 3), 1024, (432,)),
        ((5, 7), 6, (5, 7)),
        ((9, 2, 3), 6, (9, 6)),
        ((2, 9, 3), 6, (2, 9, 3)),
        ((1, 1), 6, (1,)),
        ((7,), 6, (7,)),
        ((), 6, ()),
    ],
)
def test_axes_merge_from_the_left(shape, limit, merged):
    assert merged_shape(shape, limit, True) == merged


def test_which_axes_have_an_eigenbasis():
    assert axes_of((4, 9, 1, 3), 8, False, 4) == (0, 3)
    assert axes_of((4,), 8, False, 1) == axes_of((), 8, True, 0) == ()
    assert axes_of((4,), 8, True, 1) == (0,)
    assert axes_of((36,), 40, False, 4) == (0,), "of a merged kernel"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("graph", [False, True])
def test_matrices_of_the_axes_and_rotations(shape, graph):
    (x,) = arrays(0, [shape])
    bases = {axis: np.linalg.qr(m)[0] for axis, m in enumerate(arrays(1, [(n, n) for n in shape]))}
    axes = tuple(bases)

    def all_of(x, *bases):
        grams = ()
        for axis in axes:
            grams += (gram(x, axis),)
        return grams, rotated(x, axes, bases), rotated_back(x, axes, bases)

    run = ms.jit(all_of) if graph else all_of
    grams, into, out = run(*tensors([x, *bases.values()]))
    for axis, found in zip(axes, grams, strict=True):
        np.testing.assert_allclose(found.asnumpy(), others(x, axis) @ others(x, axis).T, atol=1e-13)
    np.testing.assert_allclose(into.asnumpy(), turn(x, bases), atol=1e-13)
    np.testing.assert_allclose(out.asnumpy(), turn(x, bases, back=True), atol=1e-13)


@pytest.mark.parametrize(("dtype", "size"), [(np.float64, 12), (np.float32, 200)])
def test_the_first_basis_has_the_eigenvectors_the_largest_first(dtype, size):
    matrix, vectors = symmetric(0, size, dtype)
    found = first_basis(Tensor(matrix)).asnumpy().astype(np.float64)
    tolerance = 1e-11 if dtype == np.float64 else 2e-6 * np.sqrt(size)
    np.testing.assert_allclose(found.T @ found, np.eye(size), atol=tolerance)
    diagonal = found.T @ matrix @ found
    np.testing.assert_allclose(diagonal, np.diag(np.geomspace(100, 1, size)), atol=100 * tolerance)
    if dtype == np.float64:
        np.testing.assert_allclose(np.abs(found.T @ vectors), np.eye(size), atol=1e-10)


def test_zeros_have_an_orthogonal_basis():
    found = first_basis(Tensor(np.zeros((4, 4), np.float32))).asnumpy()
    np.testing.assert_allclose(found.T @ found, np.eye(4), atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-12, 0.0])
def test_a_basis_stays_orthogonal_where_there_is_no_curvature(scale):
    """MindSpore's QR alone is not, in its first call, though there is always an orthogonal Q: its squares underflow."""
    compiled, rng = ms.jit(next_basis), np.random.default_rng(0)
    rows = np.where(np.arange(60) < 30, 1.0, 0.0)[:, None] * rng.standard_normal((60, 3))
    tiny = np.geomspace(1, 1e-22, 60)[:, None] * rng.standard_normal((60, 60)) * np.geomspace(1, 1e-22, 60)
    basis = np.linalg.qr(rng.standard_normal((60, 60)))[0].astype(np.float32)
    for matrix in (rows @ rows.T, tiny @ tiny.T):
        found = compiled(Tensor((scale * matrix).astype(np.float32)), Tensor(basis))[0].asnumpy().astype(np.float64)
        np.testing.assert_allclose(found.T @ found, np.eye(60), atol=2e-6)


def test_a_basis_moves_towards_the_eigenvectors_and_is_sorted():
    matrix, vectors = symmetric(0, 6)
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0]
    quotients = np.einsum("ij,ik,kj->j", basis, matrix, basis)
    new, order = next_basis(*tensors([matrix, basis]))
    np.testing.assert_array_equal(order.asnumpy(), np.argsort(-quotients))
    for _ in range(60):
        basis = next_basis(*tensors([matrix, basis]))[0].asnumpy()
        np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-13)
    np.testing.assert_allclose(np.abs(basis.T @ vectors), np.eye(6), atol=1e-6)
    again = next_basis(*tensors([matrix, vectors[:, ::-1]]))
    np.testing.assert_allclose(np.abs(again[0].asnumpy()), np.abs(vectors), atol=1e-12)
    np.testing.assert_array_equal(again[1].asnumpy(), np.arange(6)[::-1])


def test_a_renewal_leaves_the_first_moment_where_it_is_and_sorts_the_second():
    """In the coordinates of the weights, whatever the order and the signs of the basis vectors."""
    grams = [symmetric(axis, n)[0] for axis, n in enumerate((4, 3))]
    bases = [np.linalg.qr(m)[0] for m in arrays(1, [(4, 4), (3, 3)])]
    (m, v), axes = np.abs(arrays(2, [(4, 3), (4, 3)])), (0, 1)
    found = renewed(*tensors([m, v]), axes, tensors(grams), tensors(bases))
    before, after = (rotated_back(x, axes, q).asnumpy() for x, q in ((Tensor(m), tensors(bases)), (found[0], found[2])))
    np.testing.assert_allclose(after, before, atol=1e-13)
    np.testing.assert_array_equal(np.sort(found[1].asnumpy(), axis=None), np.sort(v, axis=None))
    rows, columns = np.array([2, 0, 3, 1]), np.array([1, 2, 0])
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    mixed = [signs * bases[0][:, rows], bases[1][:, columns]]
    twin = renewed(*tensors([(signs[:, None] * m[rows])[:, columns], v[rows][:, columns]]), axes, tensors(grams),
                   tensors(mixed))  # fmt: skip
    np.testing.assert_allclose(twin[1].asnumpy(), found[1].asnumpy(), atol=1e-15)
    for one, other in zip(twin[2], found[2], strict=True):
        np.testing.assert_allclose(np.abs(one.asnumpy()), np.abs(other.asnumpy()), atol=1e-12)
