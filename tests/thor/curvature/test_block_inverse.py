import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from thor.curvature import block_inverse, inverter
from thor.curvature.backends import BATCH_STEP
from thor.curvature.factor import Factor
from thor.curvature.inverter import Inverter, Job
from thor.factors.blocks import Cut

METHODS = ("lapack", "cholesky", "newton-schulz")
ON_HOST = {"lapack": block_inverse.invert_on_host, "sweeps": block_inverse.invert_by_sweeps,
           "calls of lapack": block_inverse.invert_by_lapack}  # fmt: skip
BOTH_ON_HOST = ("sweeps", "calls of lapack")


def run(method, blocks, damping):
    """(inverses, trusted) as NumPy, compiled where the method is a graph."""
    blocks, damping = np.asarray(blocks, np.float32), np.asarray(damping, np.float32)
    if method in ON_HOST:
        return ON_HOST[method](blocks, damping)
    kernel = block_inverse.invert_by_cholesky if method == "cholesky" else block_inverse.invert_by_newton_schulz
    found, trusted = kernel(Tensor(blocks), Tensor(damping))
    return found.asnumpy(), trusted.asnumpy() > 0


def positive(count, size, condition=100.0, seed=0):
    """SPD blocks with eigenvalues from 1 to ``condition``, not aligned with the axes."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.standard_normal((count, size, size)))[0]
    return q * np.geomspace(1, condition, size) @ q.transpose(0, 2, 1)


def algebra(method):
    """What runs the method inside the optimizer: on the host, or compiled."""
    return Inverter(method).algebra


def tensor_of(method, blocks):
    return np.asarray(blocks, np.float32) if method == "lapack" else Tensor(np.asarray(blocks, np.float32))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_each_method_equals_the_float64_inverse(method, size):
    blocks, damping = positive(3, size), np.array([0.1, 1.0, 10.0])
    found, trusted = run(method, blocks, damping)
    wanted = np.linalg.inv(blocks + damping[:, None, None] * np.eye(size))
    assert trusted.all()
    # float32's 6e-8 times a condition number of a hundred, with a margin
    np.testing.assert_allclose(found, wanted, atol=3e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("method", METHODS)
def test_inverse_times_damped_block_is_the_identity(method):
    blocks, damping = positive(2, 8, condition=1e4), np.array([0.5, 0.5])
    found, _ = run(method, blocks, damping)
    product = found.astype(np.float64) @ (blocks + 0.5 * np.eye(8))
    np.testing.assert_allclose(
        product, np.broadcast_to(np.eye(8), product.shape), atol=3e-2
    )  # 6e-8 * 1e4 * 8 terms, and margin


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_inverse_does_not_depend_on_the_blocks_scale(method, scale):
    blocks = positive(1, 6)
    found, trusted = run(method, blocks * scale, [0.0])
    wanted = np.linalg.inv(blocks * scale)
    assert trusted.all()
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("method", METHODS)
def test_a_block_that_is_not_positive_definite_is_flagged_and_leaves_the_others_alone(method):
    blocks = positive(3, 5)
    blocks[1] -= 50 * np.eye(5)
    (found,), trusted = algebra(method).invert([tensor_of(method, blocks)], np.full(3, 0.1, np.float32))
    found = np.asarray(found if method == "lapack" else found.asnumpy())
    assert trusted.tolist() == [True, False, True]
    wanted = np.linalg.inv(blocks[::2] + 0.1 * np.eye(5))
    np.testing.assert_allclose(found[:3:2], wanted, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_blocks_of_nan_or_zero_are_flagged(method):
    blocks = np.stack([np.full((4, 4), np.nan), np.zeros((4, 4)), np.eye(4)])
    _, trusted = algebra(method).invert([tensor_of(method, blocks)], np.array([0.1, 0.0, 0.1], np.float32))
    assert trusted.tolist() == [False, False, True]


@pytest.mark.parametrize("method", METHODS)
def test_zero_padding_becomes_the_dampings_inverse_and_changes_nothing_else(method):
    block = np.zeros((1, 6, 6))
    block[0, :4, :4] = positive(1, 4)[0]
    found, trusted = run(method, block, [0.5])
    assert trusted.all()
    np.testing.assert_allclose(found[0, :4, :4], np.linalg.inv(block[0, :4, :4] + 0.5 * np.eye(4)), atol=1e-5)
    np.testing.assert_allclose(found[0, 4:, 4:], 2 * np.eye(2), atol=1e-5)
    np.testing.assert_allclose(found[0, :4, 4:], 0, atol=1e-6)


def factor(matrix, size, name="x"):
    """A plain-blocks Factor that holds the blocks of ``matrix``."""
    count = len(matrix) // size
    made = Factor(name, Cut(len(matrix), size, count), 1)
    blocks = [matrix[i * size : (i + 1) * size, i * size : (i + 1) * size] for i in range(count)]
    made.blocks.set_data(Tensor(np.stack(blocks)[None].astype(np.float32)))
    return made


@pytest.mark.parametrize("method", METHODS)
def test_escalation_adds_tenfold_damping_to_the_bad_block_alone(method):
    matrix = np.diag([4.0, 5.0, -0.5, 6.0])  # the second block needs more than 0.5
    job = Job(factor(matrix, 2), np.array([0.1], np.float32))
    other = Job(factor(np.eye(2), 2, "y"), np.array([0.1], np.float32))
    Inverter(method).refresh([job, other])
    assert (job.escalated, job.failed) == (1, False)
    assert (other.escalated, other.failed) == (0, False)
    job.commit()
    inverse_blocks = job.factor.inverse.asnumpy()[0]
    np.testing.assert_allclose(inverse_blocks[0], np.diag([1 / 4.1, 1 / 5.1]), rtol=1e-4)
    np.testing.assert_allclose(inverse_blocks[1], np.diag([1 / 0.5, 1 / 7.0]), rtol=1e-4)  # damping 1.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [-1e9, np.nan, np.inf])
def test_a_factor_that_cannot_be_inverted_fails_and_changes_nothing(method, bad):
    job = Job(factor(np.diag([1.0, bad]), 1), np.array([0.1], np.float32))
    good = Job(factor(np.diag([1.0, 3.0]), 1, "y"), np.array([1.0], np.float32))
    before = job.factor.inverse.asnumpy().copy()
    Inverter(method).refresh([job, good])
    assert job.failed and not job.results
    assert not good.failed
    job.commit()
    good.commit()
    np.testing.assert_array_equal(job.factor.inverse.asnumpy(), before)
    np.testing.assert_allclose(good.factor.inverse.asnumpy().reshape(-1), [0.5, 0.25], rtol=1e-5)


def test_every_retry_is_ten_times_the_one_before_up_to_the_limit():
    just = 0.1 * inverter.ESCALATION**inverter.RETRIES
    for lowest, failed in ((-just * 0.9, False), (-just * 1.1, True)):
        job = Job(factor(np.array([[lowest]]), 1), np.array([0.1], np.float32))
        Inverter("lapack").refresh([job])
        assert job.failed is failed


def test_device_batches_of_any_length_equal_the_host():
    """Batches are padded to a multiple of BATCH_STEP: lengths around it."""
    for count in (1, BATCH_STEP, BATCH_STEP + 1):
        matrix = np.zeros((2 * count, 2 * count))
        for k, block in enumerate(positive(count, 2)):
            matrix[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = block
        found = []
        for method in ("lapack", "newton-schulz"):
            job = Job(factor(matrix, 2), np.array([0.3], np.float32))
            Inverter(method).refresh([job])
            job.commit()
            found.append(job.factor.inverse.asnumpy())
        np.testing.assert_allclose(found[1], found[0], atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("power", [1, 4, 5, 6, 8])
def test_an_inverse_that_is_trusted_is_one(method, power):
    """Where float32 has no digits left, a method may say so, but not answer with rubbish."""
    blocks = positive(1, 8, condition=10.0**power).astype(np.float32)
    try:
        found, trusted = run(method, blocks, [0.0])
    except RuntimeError:  # ops.cholesky on a CPU: not positive definite any more, after rounding
        assert power > 6
        return
    if power <= 4:
        assert trusted.all()
    exact = blocks[0].astype(np.float64)
    if trusted.all() and method == "lapack":  # it is backward stable: its residual may be large, its error may not
        wanted = np.linalg.inv(exact)
        error = np.linalg.norm(found[0] - wanted, 2) / np.linalg.norm(wanted, 2)
        assert error <= 4 * 8 * np.finfo(np.float32).eps * np.linalg.cond(exact)
    elif trusted.all():
        assert np.abs(exact @ found[0] - np.eye(8)).max() < 2 * block_inverse.RESIDUAL_LIMIT


def test_the_inverses_are_float32():
    for method in METHODS:
        assert run(method, np.eye(3)[None], [1.0])[0].dtype == np.float32
    assert ms.float32 == Factor("z", Cut(4, 2, 2), 1).inverse.dtype


@pytest.mark.parametrize("method", BOTH_ON_HOST)
@pytest.mark.parametrize("size", [1, 3, 9, 10, 25])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
def test_sweeps_and_lapack_are_as_exact_as_float32_allows(method, size, condition):
    """The relative error of an inverse is at most the condition number times some roundings of a row's products."""
    blocks = positive(7, size, condition).astype(np.float32)
    damping = np.geomspace(1e-3, 10, 7).astype(np.float32)
    found, trusted = run(method, blocks, damping)
    damped = blocks.astype(np.float64) + damping[:, None, None].astype(np.float64) * np.eye(size)
    wanted = np.linalg.inv(damped)
    assert trusted.all()
    error = np.linalg.norm(found - wanted, 2, (1, 2)) / np.linalg.norm(wanted, 2, (1, 2))
    assert (error <= 4 * size * np.finfo(np.float32).eps * np.linalg.cond(damped)).all()
    np.testing.assert_array_equal(found, found.transpose(0, 2, 1))


def test_a_swept_block_does_not_depend_on_the_blocks_beside_it():
    """Ranks that share the blocks get, bit for bit, what one process gets; the input is left as it was."""
    size = 9
    each = block_inverse.SWEPT_ENTRIES // size**2
    blocks = positive(2 * each + 3, size).astype(np.float32)
    blocks[5] = -blocks[5]
    before, damping = blocks.copy(), np.linspace(0.1, 1.0, len(blocks)).astype(np.float32)
    found, trusted = block_inverse.invert_by_sweeps(blocks, damping)
    assert not trusted[5] and trusted.sum() == len(blocks) - 1
    for at in (0, 5, each - 1, each, 2 * each + 2):
        alone, flag = block_inverse.invert_by_sweeps(blocks[at : at + 1], damping[at : at + 1])
        np.testing.assert_array_equal(alone[0], found[at])
        assert flag[0] == trusted[at]
    np.testing.assert_array_equal(blocks, before)


@pytest.mark.parametrize("method", BOTH_ON_HOST)
def test_both_flag_the_same_blocks(method):
    """A block is trusted if and only if it is positive definite: eigenvalues are away from 0 by more than rounding."""
    rng = np.random.default_rng(3)
    q = np.linalg.qr(rng.standard_normal((200, 6, 6)))[0]
    values = rng.uniform(0.1, 1.0, (200, 6)) * rng.choice([1.0, 1.0, 1.0, 1.0, 1.0, -1.0], (200, 6))
    blocks = (q * values[:, None]) @ q.transpose(0, 2, 1)
    _, trusted = run(method, blocks, np.zeros(200))
    np.testing.assert_array_equal(trusted, (values > 0).all(1))
    assert 20 < trusted.sum() < 180


@pytest.mark.parametrize("size", [block_inverse.SWEPT_SIZE, block_inverse.SWEPT_SIZE + 1])
def test_the_size_alone_decides_how_the_host_inverts(size):
    blocks, damping = positive(2, size).astype(np.float32), np.full(2, 0.1, np.float32)
    method = "sweeps" if size == block_inverse.SWEPT_SIZE else "calls of lapack"
    np.testing.assert_array_equal(run("lapack", blocks, damping)[0], run(method, blocks, damping)[0])
    others = {name: run(name, blocks, damping)[0] for name in BOTH_ON_HOST}
    assert not np.array_equal(*others.values())  # or the comparison above would say nothing
