"""Losses, errors and directions of a split against dense float64 eigenvalues and inverses.

Tolerances. A spectral norm is Lanczos with a relative tolerance of 1e-5 on float32 products, whose own rounding is a
few 1e-6 of ||A||: 3e-5 of ||A|| holds for both. A share of 1 % that decides is 300 times larger.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import reference
from thor.factors.blocks import BlockPlan, Cut
from thor.profile import spectral

NORM = 3e-5


def spd(dim, copies=1, seed=0, rows=None):
    """Second moments [c, d, d] of uncentred rows, and the means u with A - u u^T still semi-definite."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((copies, rows or dim + 5, dim)) * rng.uniform(0.2, 2.0, dim) + 0.5
    factor = np.einsum("cri,crj->cij", x, x) / x.shape[1]
    return factor.astype(np.float32), x.mean(1).astype(np.float32)


def orthogonal(dim, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))[0]


def with_eigenvalues(values, seed=0):
    q = orthogonal(len(values), seed)
    return ((q * values) @ q.T).astype(np.float32)[None]


def norm(stack):
    """||.||_2 of a stack as one block-diagonal matrix."""
    return max(np.abs(np.linalg.eigvalsh(matrix.astype(np.float64))).max() for matrix in stack)


def cut_of(dim, size, split="block", rank=3):
    return BlockPlan(block_size=size, split=split, rank=rank).cut(dim)


def dense_loss(factor, size):
    """1 - ||A_hat|| / ||A|| by the definition; ``size`` is the size of the cut."""
    kept = [reference.block_diagonal(matrix.astype(np.float64), size) for matrix in factor]
    return 1 - norm(kept) / norm(factor) if norm(factor) else 0.0


def loss(factor, size):
    return spectral.spectral_loss(factor, cut_of(factor.shape[1], size), spectral.factor_norm(factor))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 80), st.integers(1, 3), st.integers(1, 90), st.integers(0, 10**6))
def test_the_loss_is_that_of_dense_eigenvalues(dim, copies, size, seed):
    factor, _ = spd(dim, copies, seed, rows=1 + seed % 100)  # rank-deficient ones too
    assert spectral.factor_norm(factor) == pytest.approx(norm(factor), rel=NORM)
    assert loss(factor, size) == pytest.approx(dense_loss(factor, cut_of(dim, size).size), abs=NORM)


@pytest.mark.parametrize("size", [3, 16, 40])
def test_a_factor_that_is_block_diagonal_already_loses_nothing(size):
    factor = reference.block_diagonal(spd(4 * size)[0][0], size)[None].astype(np.float32)
    assert loss(factor, size) == pytest.approx(0.0, abs=NORM)
    assert spectral.Split(factor, cut_of(4 * size, size)).error(norm(factor)) < NORM


@pytest.mark.parametrize(("dim", "size"), [(12, 3), (60, 10), (80, 16)])
def test_a_factor_of_rank_one_loses_what_its_largest_block_lacks(dim, size):
    """A = u u^T has one eigenvalue |u|^2, its blocks |u_i|^2: L = 1 - max |u_i|^2 / |u|^2, 1 - 1/n if all are alike."""
    u = np.random.default_rng(1).uniform(0.5, 2.0, dim).astype(np.float32)
    parts = [(u[i : i + size] ** 2).sum() for i in range(0, dim, size)]
    assert loss(np.outer(u, u)[None], size) == pytest.approx(1 - max(parts) / (u**2).sum(), abs=NORM)
    assert loss(np.ones((1, dim, dim), np.float32), size) == pytest.approx(1 - size / dim, abs=NORM)


@pytest.mark.parametrize("span", [1e6, 1e12])
@pytest.mark.parametrize("size", [5, 30])
def test_a_badly_conditioned_factor(span, size):
    factor = with_eigenvalues(np.geomspace(1 / span, 1.0, 60))
    assert loss(factor, size) == pytest.approx(dense_loss(factor, size), abs=NORM)


@pytest.mark.parametrize("scale", [1e-20, 1e-8, 1e8, 1e15])
def test_the_loss_does_not_depend_on_the_factors_scale(scale):
    factor, _ = spd(40)
    assert loss(factor * np.float32(scale), 8) == pytest.approx(loss(factor, 8), abs=NORM)


def test_close_large_eigenvalues_do_not_fool_lanczos():
    """Half of the spectrum within 1e-7 of the largest: Lanczos does not separate them and needs not."""
    factor = with_eigenvalues(np.concatenate([1 + 1e-7 * np.arange(40), np.linspace(0, 0.5, 40)]))
    assert spectral.factor_norm(factor) == pytest.approx(norm(factor), rel=NORM)
    assert loss(factor, 20) == pytest.approx(dense_loss(factor, 20), abs=NORM)


@pytest.mark.parametrize("dim", [1, 2, 24, 25, 80])
@pytest.mark.parametrize("copies", [1, 3])
def test_zero_and_a_multiple_of_the_identity(dim, copies):
    zero = np.zeros((copies, dim, dim), np.float32)
    assert spectral.factor_norm(zero) == 0.0
    assert loss(zero, 4) == 0.0
    assert spectral.Split(zero, cut_of(dim, 4)).error(0.0) == 0.0
    equal = np.broadcast_to(3 * np.eye(dim, dtype=np.float32), (copies, dim, dim))
    assert spectral.factor_norm(equal) == pytest.approx(3.0, rel=NORM)
    assert loss(equal, 4) == pytest.approx(0.0, abs=NORM)


def test_a_factor_without_any_block_left_loses_nothing_at_its_own_size():
    factor, _ = spd(33)
    assert loss(factor, 33) == 0.0
    assert loss(factor, 4096) == 0.0


def test_a_copy_is_a_block_of_its_own():
    """Groups of a convolution never share a block: the loss is that of the copy with the largest eigenvalue."""
    factor, _ = spd(20, copies=2)
    factor[1] *= 100
    assert loss(factor, 5) == pytest.approx(loss(factor[1:], 5), abs=NORM)


@pytest.mark.parametrize("seed", range(5))
def test_nested_cuts_lose_less_with_larger_blocks(seed):
    """A block is a principal submatrix of one twice its size, so its largest eigenvalue is no larger (Cauchy)."""
    factor, _ = spd(64, copies=2, seed=seed, rows=1 + 20 * seed)
    losses = [loss(factor, size) for size in (1, 2, 4, 8, 16, 32, 64)]
    assert all(larger <= smaller + NORM for smaller, larger in zip(losses, losses[1:], strict=False))
    assert losses[-1] == 0.0


def dense_split(split):
    """A_hat [c, d, d] in float64, put together by definition from the split's own directions."""
    found = []
    for copy in range(split.copies):
        factor = split.factor[copy].astype(np.float64)
        shared = np.zeros_like(factor) if split.beside is None else split.beside[copy].T @ split.beside[copy]
        found.append(reference.block_diagonal(factor - shared, split.cut.size) + shared)
    return np.stack(found)


@pytest.mark.parametrize("kind", ["block", "block+mean", "block+rank"])
@pytest.mark.parametrize(("dim", "size", "copies"), [(7, 3, 2), (40, 8, 1), (50, 13, 2), (80, 40, 1)])
def test_the_error_of_a_split_is_that_of_the_dense_approximation(kind, dim, size, copies):
    factor, mean = spd(dim, copies, seed=dim)
    split = spectral.Split(factor, cut_of(dim, size, kind), mean)
    found = split.error(spectral.factor_norm(factor))
    assert found == pytest.approx(norm(factor - dense_split(split)) / norm(factor), abs=NORM)


def test_the_mean_is_kept_as_it_is():
    factor, mean = spd(30, copies=2)
    split = spectral.Split(factor, cut_of(30, 8, "block+mean"), mean)
    expected = [sum(reference.with_mean(a.astype(np.float64), u, 8)) for a, u in zip(factor, mean, strict=True)]
    np.testing.assert_allclose(dense_split(split), expected, atol=1e-6 * norm(factor))
    with pytest.raises(ValueError, match="needs the mean of the rows"):
        spectral.Split(factor, cut_of(30, 8, "block+mean"))


def test_the_low_rank_is_the_nystroem_form_of_the_dominant_directions():
    """With a gap behind the third eigenvalue, three steps of subspace iteration find them: Z W^-1 Z^T is their part."""
    values = np.concatenate([np.geomspace(1e-3, 1e-2, 37), [1.0, 2.0, 4.0]])
    factor = with_eigenvalues(values)
    split = spectral.Split(factor, cut_of(40, 8, "block+rank"))
    largest = orthogonal(40)[:, -3:] * np.sqrt(values[-3:])
    # off by (0.01 / 1)^(2 * 3 + 1) of the subspace's angle; rounding of float32 is larger
    np.testing.assert_allclose(split.beside[0].T @ split.beside[0], largest @ largest.T, atol=1e-5)


@pytest.mark.parametrize("kind", ["block+mean", "block+rank"])
@pytest.mark.parametrize("rows", [2, 10, 200])
def test_what_the_blocks_keep_is_positive_semi_definite(kind, rows):
    """A - U^T U >= 0 for the mean (Jensen) and for Nystroem, so its diagonal blocks are, but for rounding of A."""
    factor, mean = spd(48, copies=2, rows=rows)
    blocks = spectral.Split(factor, cut_of(48, 16, kind), mean).blocks().astype(np.float64)
    assert np.linalg.eigvalsh(blocks).min() >= -2e-6 * norm(factor)


def test_blocks_lie_on_the_diagonal_and_are_padded_with_zeros():
    factor, _ = spd(10, copies=2)
    blocks = spectral.Split(factor, Cut(10, 4, 3)).blocks()
    assert blocks.shape == (2, 3, 4, 4)
    np.testing.assert_array_equal(blocks[1, 1], factor[1, 4:8, 4:8])
    np.testing.assert_array_equal(blocks[0, 2, :2, :2], factor[0, 8:, 8:])
    assert not blocks[:, 2, 2:].any() and not blocks[:, 2, :, 2:].any()


@pytest.mark.parametrize("kind", ["block", "block+mean", "block+rank"])
@pytest.mark.parametrize(("dim", "size", "copies"), [(7, 3, 2), (40, 8, 1), (50, 13, 2), (50, 64, 1)])
@pytest.mark.parametrize("damping", [1e-3, 0.3])
def test_solve_is_the_dense_damped_inverse(kind, dim, size, copies, damping):
    """Woodbury in float32 at a condition of at most ||A|| / damping ~ 1e5, times 6e-8: below 1 % of the solution."""
    factor, mean = spd(dim, copies, seed=dim)
    right = np.random.default_rng(3).standard_normal((copies, dim, 4)).astype(np.float32)
    dampings = damping * np.arange(1, copies + 1)
    split = spectral.Split(factor, cut_of(dim, size, kind), mean)
    expected = np.stack(
        [reference.damped_inverse(a, d) @ x for a, d, x in zip(dense_split(split), dampings, right, strict=True)]
    )
    found = split.solve(dampings, right)
    tolerance = max(1e-5, 1e-6 * norm(factor) / damping)
    assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)


def test_a_block_that_rounding_made_indefinite_gets_more_damping():
    block = np.diag([1.0, -1e-4]).astype(np.float32)
    found = spectral.solve_damped(block, 2e-5, np.ones((2, 1), np.float32))
    np.testing.assert_allclose(found[:, 0], [1 / (1 + 2e-4), 1 / (2e-4 - 1e-4)], rtol=1e-4)
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        spectral.solve_damped(-np.eye(2, dtype=np.float32), 1e-9, np.ones((2, 1), np.float32))


@pytest.mark.parametrize(("channels", "positions", "bias"), [(3, 4, 1), (5, 9, 0), (2, 1, 1), (1, 6, 0)])
def test_position_major_turns_channels_and_positions_and_leaves_the_bias(channels, positions, bias):
    dim = channels * positions + bias
    order = spectral.position_major(dim, positions)
    named = [(c, p) for c in range(channels) for p in range(positions)] + ["bias"] * bias
    wanted = [(c, p) for p in range(positions) for c in range(channels)] + ["bias"] * bias
    assert [named[i] for i in order] == wanted
    assert sorted(order) == list(range(dim))


def test_an_indefinite_difference_is_measured_by_its_largest_magnitude():
    values = np.concatenate([np.linspace(-1, 1, 60), [-3.0]])
    matrix = with_eigenvalues(values)[0]
    assert spectral.spectral_norm(lambda x: matrix @ x, 61) == pytest.approx(3.0, rel=NORM)
    assert spectral.spectral_norm(lambda x: matrix[:20, :20] @ x, 20) == pytest.approx(
        norm(matrix[None, :20, :20]), rel=NORM
    )


def test_where_lanczos_gives_nothing_power_iteration_answers(monkeypatch):
    def hopeless(*_, **__):
        raise spectral.ArpackNoConvergence("no", np.empty(0), np.empty((0, 0)))

    monkeypatch.setattr(spectral, "eigsh", hopeless)
    factor = with_eigenvalues(np.concatenate([np.linspace(0, 0.8, 49), [1.0]]))
    assert spectral.factor_norm(factor) == pytest.approx(1.0, rel=NORM)  # 0.8^(2 * 100): converged
