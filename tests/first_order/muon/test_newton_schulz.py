"""The Newton-Schulz iteration: a polynomial of the singular values, by theorems and against PyTorch's own."""

import mindspore as ms
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor
from torch.optim import _muon as torch_muon

from first_order import newton_schulz
from tests.first_order.arrays import TOLERANCE, arrays
from tests.first_order.muon.reference import COEFFICIENTS, polynomial, singular

SHAPES = [(6, 6), (4, 9), (9, 4), (1, 5), (5, 1), (3, 4, 7), (2, 3, 7, 4)]


@settings(max_examples=20, deadline=None)
@given(shape=st.sampled_from(SHAPES), dtype=st.sampled_from([np.float32, np.float64]), seed=st.integers(0, 99),
       steps=st.integers(0, 7), exponent=st.integers(-6, 6))  # fmt: skip
def test_singular_values_become_a_polynomial_and_vectors_stay(shape, dtype, seed, steps, exponent):
    """Of every matrix of a stack, tall, wide or square, whatever its scale."""
    (x,) = arrays(seed, [shape], dtype, scale=10.0**exponent)
    found = newton_schulz(x, steps=steps).asnumpy()
    assert found.dtype == dtype
    wanted = singular(x.astype(np.float64), lambda s, norm: polynomial(s / norm, steps))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=20 * TOLERANCE[dtype])


def test_singular_values_of_at_least_a_hundredth_come_near_one():
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.standard_normal((40, 40)))
    right, _ = np.linalg.qr(rng.standard_normal((60, 40)))
    values = np.geomspace(1.0, 0.011, 40)
    values /= np.linalg.norm(values)
    values = np.maximum(values, 0.01 * np.linalg.norm(values))
    found = np.linalg.svd(newton_schulz(left * values @ right.T).asnumpy(), compute_uv=False)
    assert 0.68 <= found.min() <= found.max() <= 1.14


def test_scale_and_rotations():
    x, q = arrays(0, [(5, 8), (5, 5)])
    q, _ = np.linalg.qr(q)
    found = newton_schulz(x).asnumpy()
    for scale in (1e-5, 1e3):
        np.testing.assert_allclose(newton_schulz(scale * x).asnumpy(), found, rtol=1e-12)
    np.testing.assert_allclose(newton_schulz(q @ x).asnumpy(), q @ found, atol=1e-12)
    np.testing.assert_allclose(newton_schulz(x.T).asnumpy(), found.T, atol=1e-12)


def test_coefficients_that_converge_give_the_polar_factor():
    """The classical iteration, 1.5 x - 0.5 x^3."""
    (x,) = arrays(0, [(4, 6)])
    u, _, v = np.linalg.svd(x, full_matrices=False)
    found = newton_schulz(x, coefficients=(1.5, -0.5, 0.0), steps=30).asnumpy()
    np.testing.assert_allclose(found, u @ v, atol=1e-12)


def test_eps_bounds_the_norm():
    x = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert (newton_schulz(0 * x).asnumpy() == 0).all()
    np.testing.assert_allclose(newton_schulz(x, steps=0, eps=50.0).asnumpy(), x / 50)
    np.testing.assert_allclose(newton_schulz(x, steps=0, eps=4.0).asnumpy(), x / 5)


def test_what_is_no_number_shows():
    x = np.ones((3, 3), np.float32)
    for bad in (np.nan, np.inf):
        x[0, 1] = bad
        assert np.isnan(newton_schulz(x).asnumpy()).any()


@pytest.mark.parametrize("shape", [(64, 128), (128, 64), (50, 50)])
def test_bfloat16_is_pytorchs_own(shape):
    """To a rounding of bfloat16 here and there: sums are added up in another order. float32 is farther off."""
    (x,) = arrays(0, [shape], np.float32)
    theirs = torch_muon._zeropower_via_newtonschulz(torch.from_numpy(x), COEFFICIENTS, 5, 1e-7).float().numpy()
    close, far = (np.abs(newton_schulz(x, dtype=dtype).asnumpy() - theirs) for dtype in (ms.bfloat16, None))
    rounding = 2.0**-8 * np.abs(theirs).max()
    assert close.max() <= 5 * rounding and far.max() <= 10 * rounding
    assert close.mean() <= 0.3 * far.mean()


def test_types_of_the_iteration():
    (x,) = arrays(0, [(5, 8)])
    exact = newton_schulz(x).asnumpy()
    single = newton_schulz(x, dtype=ms.float32).asnumpy()
    assert single.dtype == np.float64
    np.testing.assert_array_equal(single, newton_schulz(x.astype(np.float32)).asnumpy())
    np.testing.assert_allclose(single, exact, atol=1e-5)
    half = newton_schulz(x.astype(np.float16)).asnumpy()
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, exact, atol=1e-2)


def test_it_works_inside_a_graph():
    (x,) = arrays(0, [(3, 5)], np.float32)

    @ms.jit
    def compiled(x):
        return newton_schulz(x), newton_schulz(x, dtype=ms.bfloat16)

    for found, dtype in zip(compiled(Tensor(x)), (None, ms.bfloat16), strict=True):
        np.testing.assert_allclose(found.asnumpy(), newton_schulz(x, dtype=dtype).asnumpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"matrix": np.ones(3)}, ValueError, r"matrix must have at least two axes, but has shape \(3,\)"),
        ({"matrix": [[1.0]]}, TypeError, "matrix must be a Tensor or a NumPy array"),
        ({"coefficients": (1.0, 2.0)}, ValueError, r"^coefficients must be three numbers \(a, b, c\), but got \(1.0"),
        ({"coefficients": (1.0, 2.0, "c")}, TypeError, r"^coefficients\[2\] must be a number, but got 'c'"),
        ({"steps": 100}, ValueError, "^steps must be at most 99, but got 100: 5 are usual"),
        ({"steps": 2.0}, TypeError, "^steps must be an int, but got 2.0"),
        ({"eps": 0.0}, ValueError, "eps must be finite and greater than 0, but got 0.0"),
        (
            {"dtype": ms.float16},
            ValueError,
            "^dtype must be None .*, mindspore.float32 or .*, but got mindspore.float16",
        ),
    ],
)
def test_errors(changes, error, message):
    with pytest.raises(error, match=message):
        newton_schulz(**({"matrix": np.ones((2, 2))} | changes))
