"""Block splits, and what stands beside the blocks: against their dense construction in float64."""

import numpy as np
import pytest
from mindspore import Tensor

from tests.support import reference
from thor.curvature.factor import Factor, low_rank_part
from thor.curvature.inverter import Inverter, Job
from thor.factors.blocks import BlockPlan

DIM, ROWS = 10, 40
METHODS = ("lapack", "cholesky", "newton-schulz")


def rows(seed=0, dim=DIM):
    """Correlated rows with a mean far from zero."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((ROWS, dim)) @ rng.standard_normal((dim, dim)) / 3 + np.linspace(-1, 2, dim)


def second_moment(x):
    return x.T @ x / len(x)


def padded_blocks(matrix, cut):
    whole = np.zeros((cut.padded, cut.padded))
    whole[: cut.dim, : cut.dim] = matrix
    parts = [whole[i * cut.size : (i + 1) * cut.size, i * cut.size : (i + 1) * cut.size] for i in range(cut.count)]
    return np.stack(parts)[None]


def tensor(array):
    return Tensor(np.ascontiguousarray(array, np.float32))


def observe(factor, x, share=1.0):
    """Average the rows' statistics into the factor with weight ``share``, as a curvature step does."""
    matrix, cut = second_moment(x), factor.cut

    def average(parameter, fresh):
        parameter.set_data(tensor(parameter.asnumpy() * (1 - share) + share * fresh))

    average(factor.blocks, padded_blocks(matrix, cut))
    if cut.split == "block+mean":
        average(factor.beside, np.pad(x.mean(0), (0, cut.padded - cut.dim))[None, :, None])
    elif cut.split == "block+rank":
        thin = factor.probe.asnumpy()[0, : cut.dim]
        average(factor.beside, np.pad(matrix @ thin, ((0, cut.padded - cut.dim), (0, 0)))[None])


def factor(split, size=4, rank=3, dim=DIM, name="layer.a", across=0):
    return Factor(name, BlockPlan(block_size=size, split=split, rank=rank).cut(dim, across=across), 1)


def refresh(*factors, damping=0.1, method="lapack"):
    jobs = [Job(f, np.array([damping], np.float32)) for f in factors]
    Inverter(method).refresh(jobs)
    for job in jobs:
        assert not job.failed and job.escalated == 0
        job.commit()


def construction(made, x):
    """(D, L) of the split, dense and in float64."""
    matrix, size = second_moment(x), made.cut.size
    if made.cut.split == "block+mean":
        return reference.with_mean(matrix, x.mean(0), size)
    if made.cut.split == "block+rank":
        return reference.with_rank(matrix, made.probe.asnumpy()[0, : made.cut.dim].astype(np.float64), size)
    return reference.block_diagonal(matrix, size), np.zeros_like(matrix)


@pytest.mark.parametrize("size", [3, 4, 5])  # 10 in 4 blocks of 3 (two rows of padding), 3 of 4, 2 of 5
@pytest.mark.parametrize("split", ["block", "block+mean", "block+rank"])
def test_factor_and_inverse_equal_their_dense_construction(split, size):
    made, x = factor(split, size), rows()
    observe(made, x)
    blocks, beside = construction(made, x)
    np.testing.assert_allclose(made.dense()[0], blocks + beside, rtol=1e-4, atol=1e-4)
    refresh(made, damping=0.2)
    wanted = reference.damped_inverse(blocks + beside, 0.2)
    np.testing.assert_allclose(made.dense_inverse()[0], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("across", [0, 1], ids=["in blocks", "whole"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("split", ["block+mean", "block+rank"])
def test_woodbury_equals_the_dense_inverse_with_every_method(split, method, across):
    made, x = factor(split, across=across), rows(1)
    assert made.cut.whole_inverse == bool(across)
    observe(made, x)
    blocks, beside = construction(made, x)
    refresh(made, method=method)
    product = made.dense_inverse()[0] @ (blocks + beside + 0.1 * np.eye(DIM))
    np.testing.assert_allclose(product, np.eye(DIM), atol=2e-3)  # condition number a few hundred


@pytest.mark.parametrize("split", ["block+mean", "block+rank"])
@pytest.mark.parametrize("seed", range(5))
def test_what_remains_for_the_blocks_is_positive_semi_definite(split, seed):
    made, x = factor(split), rows(seed)
    observe(made, x)
    u = low_rank_part(made)[0]
    whole = np.zeros((made.cut.padded, made.cut.padded))
    whole[:DIM, :DIM] = second_moment(x)
    assert np.linalg.eigvalsh(whole - u.T @ u)[0] > -1e-5  # not only its blocks
    for block in padded_blocks(second_moment(x) - (u.T @ u)[:DIM, :DIM], made.cut)[0]:
        assert np.linalg.eigvalsh(block)[0] > -1e-5


def test_the_mean_of_a_layer_used_twice_leaves_the_rest_positive_semi_definite():
    """Two uses sum their statistics: A_1 + A_2 and u_1 + u_2. The naive (u_1 + u_2)(u_1 + u_2)^T would be too much."""
    made, x, z = factor("block+mean"), rows(0) + 3, rows(1) + 3
    observe(made, x)
    observe(made, z, share=0.5)
    made.blocks.set_data(made.blocks * 2)
    made.beside.set_data(made.beside * 2)
    made.uses.set_data(tensor([2.0]))
    matrix = second_moment(x) + second_moment(z)
    u = low_rank_part(made)[0, :, :DIM]
    assert np.linalg.eigvalsh(matrix - u.T @ u)[0] > -1e-5
    naive = x.mean(0) + z.mean(0)
    assert np.linalg.eigvalsh(matrix - np.outer(naive, naive))[0] < -1


@pytest.mark.parametrize("size", [3, 5])
def test_a_rank_of_the_whole_dimension_equals_the_full_factor(size):
    made, x = factor("block+rank", size, rank=DIM), rows()
    observe(made, x)
    np.testing.assert_allclose(made.dense()[0], second_moment(x), rtol=1e-4, atol=1e-4)
    refresh(made)
    wanted = reference.damped_inverse(second_moment(x), 0.1)
    np.testing.assert_allclose(made.dense_inverse()[0], wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("split", ["block", "block+mean", "block+rank"])
@pytest.mark.parametrize("size", [DIM, DIM + 1, 100])
def test_a_block_size_of_the_dimension_or_more_equals_the_unblocked_method(split, size):
    made, x = factor(split, size), rows()
    observe(made, x)
    np.testing.assert_allclose(made.dense()[0], second_moment(x), rtol=1e-5, atol=1e-5)
    refresh(made)
    wanted = reference.damped_inverse(second_moment(x), 0.1)
    np.testing.assert_allclose(made.dense_inverse()[0], wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_sharing_a_bucket_changes_nothing(method):
    """Blocks of one size from several factors, padded ones too, are inverted in one batch: as each on its own."""
    makers = [lambda: factor("block"), lambda: factor("block+mean", name="b"), lambda: factor("block", dim=7, name="c"),
              lambda: factor("block", size=5, name="d")]  # fmt: skip
    together, alone = ([make() for make in makers] for _ in range(2))
    for group in (together, alone):
        for seed, made in enumerate(group):
            observe(made, rows(seed, made.cut.dim))
    refresh(*together, method=method)
    for made in alone:
        refresh(made, method=method)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.dense_inverse(), other.dense_inverse(), rtol=1e-5, atol=1e-6)


def test_the_tracked_subspace_turns_to_the_strongest_directions():
    """Subspace iteration on one matrix: U^T U becomes the best approximation of rank r."""
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    values = np.array([9.0, 6.0, 4.0] + [0.05] * (DIM - 3))
    x = np.sqrt(ROWS * values)[:, None] * q.T  # x^T x / rows = q diag(values) q^T
    x = np.concatenate([x, np.zeros((ROWS - DIM, DIM))])
    best = (q[:, :3] * values[:3]) @ q[:, :3].T
    made = factor("block+rank", rank=3)
    errors = []
    for _ in range(5):
        observe(made, x)  # the last batch alone: factor_decay 0
        u = low_rank_part(made)[0, :, :DIM]
        errors.append(np.linalg.norm(u.T @ u - best))
        refresh(made)
    assert errors[0] > 0.1
    assert errors[-1] < 1e-3


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_turning_the_subspace_keeps_an_averaged_estimate_consistent(share):
    """Over many refreshes with a running average, what remains for the blocks stays positive semi-definite."""
    made = factor("block+rank", rank=3)
    observe(made, rows(0))
    for seed in range(1, 12):
        refresh(made)
        q = made.probe.asnumpy()[0]
        np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-5)
        observe(made, rows(seed), share)
        u = low_rank_part(made)[0]
        parts = u.reshape(3, made.cut.count, made.cut.size).transpose(1, 2, 0)
        for block, part in zip(made.blocks.asnumpy()[0], parts, strict=True):
            assert np.linalg.eigvalsh(block - part @ part.T)[0] > -1e-4


def test_directions_without_weight_are_dropped():
    """A factor of rank 1 with three tracked directions: W is singular, and U stays finite."""
    made = factor("block+rank", rank=3)
    x = np.tile(np.linspace(1, 2, DIM), (ROWS, 1))
    observe(made, x)
    u = low_rank_part(made)[0, :, :DIM]
    assert np.isfinite(u).all()
    np.testing.assert_allclose(u.T @ u, second_moment(x), rtol=1e-3)
    refresh(made)


def test_a_first_probe_is_orthonormal_and_the_same_in_every_run():
    one, other, third = factor("block+rank"), factor("block+rank"), factor("block+rank", name="layer.b")
    np.testing.assert_array_equal(one.probe.asnumpy(), other.probe.asnumpy())
    assert (one.probe.asnumpy() != third.probe.asnumpy()).any()
    q = one.probe.asnumpy()[0]
    np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-6)
    assert not q[DIM:].any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("split", "products"), [("block", 0), ("block+mean", 1), ("block+rank", 2)])
def test_what_a_refresh_asks_of_a_device_depends_on_sizes_of_blocks_not_on_layers(method, split, products, monkeypatch):
    """Each call, and each wait for its result, costs an accelerator's host as much as many blocks' work."""
    sizes, calls = (3, 4), []
    made = [factor(split, size, name=f"{size}.{i}") for size in sizes for i in range(3)]
    for seed, each in enumerate(made):
        observe(each, rows(seed))
    inverter = Inverter(method)
    for name in ("blocks", "finite", "invert", "times"):
        real = getattr(inverter.algebra, name)
        monkeypatch.setattr(
            inverter.algebra, name, lambda *x, name=name, real=real: calls.append((name, x)) or real(*x)
        )
    jobs = [Job(each, np.array([0.1], np.float32)) for each in made]
    inverter.refresh(jobs)
    assert not any(job.failed or job.escalated for job in jobs)
    working = [name for name, (stacks, *_) in calls if len(stacks)]
    assert sorted(working) == sorted(len(sizes) * (["blocks", "finite", "invert"] + products * ["times"]))
