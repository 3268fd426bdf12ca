"""What is timed is the inverse that training uses, and the memory is the one that training takes."""

import itertools

import numpy as np
import pytest

import thor
from tests.support.networks import Mixed, make
from thor import BlockPlan
from thor.capture.targets import find_targets
from thor.profile import gather, timing
from thor.profile.factor_shape import FactorShape, Timing, largest_at_launch_floor


def test_the_median_of_repeats_after_a_warm_up(monkeypatch):
    """A clock of its own: the first call takes 9 s and does not count."""
    now, durations = [0.0], iter([9.0, 1.0, 5.0, 3.0])

    def call():
        now[0] += next(durations)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert timing.repeat(call, 0.0) == Timing(3.0, 2.0, 4.0, 3)


def test_repeats_go_on_within_a_budget_of_seconds_and_have_an_end(monkeypatch):
    now = [0.0]

    def call():
        now[0] += 0.25

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert timing.repeat(call, 3.0).repeats == 12
    assert timing.repeat(call, 1e9).repeats == timing.MAX_REPEATS


def test_sizes_are_timed_in_turn_and_short_calls_are_averaged(monkeypatch):
    """A clock of its own: size 1 takes 0.1 ms, size 2 takes 5 ms; each call tells which it was."""
    now, order = [0.0], []

    def inversion(size, count, method):
        def call():
            order.append(size)
            now[0] += {1: 1e-4, 2: 5e-3}[size]

        return call

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "_inversion", inversion)
    monkeypatch.setattr(timing, "SECONDS_PER_SIZE", 0.0)
    first, second = timing.time_calls([1, 2], [1, 1], "lapack")
    assert (first.median, second.median) == pytest.approx((1e-4, 5e-3))
    assert first.repeats == second.repeats == timing.MIN_REPEATS
    turns = order[4:]  # after two calls each to warm up and to see how short they are
    within = turns.index(2)
    assert within > 1 and turns == ([1] * within + [2]) * timing.MIN_REPEATS


@pytest.mark.parametrize("method", ["lapack", "cholesky", "newton-schulz"])
def test_one_call_inverts_the_blocks(method):
    (inverses,), trusted = timing._inversion(6, 3, method)()
    inverses = np.asarray(inverses.asnumpy() if hasattr(inverses, "asnumpy") else inverses)
    assert np.all(trusted)
    damped = timing.positive_definite(6, 3) + 0.1 * np.eye(6)
    np.testing.assert_allclose(inverses @ damped, np.broadcast_to(np.eye(6), (3, 6, 6)), atol=1e-4)


def test_one_call_finds_the_eigenvectors_of_the_blocks():
    blocks, vectors = timing.positive_definite(6, 3), timing._inversion(6, 3, "eigh")()
    diagonal = vectors.transpose(0, 2, 1) @ blocks @ vectors
    np.testing.assert_allclose(vectors @ vectors.transpose(0, 2, 1), np.broadcast_to(np.eye(6), (3, 6, 6)), atol=1e-5)
    np.testing.assert_allclose(diagonal * (1 - np.eye(6)), 0, atol=1e-5)


@pytest.mark.parametrize(("split", "size"), list(itertools.product(["block", "block+mean", "block+rank"], [3, 16])))
def test_the_memory_of_a_plan_is_what_training_takes(split, size):
    plan = BlockPlan(block_size=size, split=split, rank=2)
    net = Mixed()
    shapes = gather.shapes_of(find_targets(net)[0])
    refresh = timing.Refresh(shapes, plan, "lapack")
    refresh()
    optimizer, _ = make(net, block_size=plan)
    assert timing.state_bytes(shapes, plan, "lapack") == refresh.bytes == optimizer.memory()["total"]


@pytest.mark.parametrize("size", [1, 3, 16])
def test_the_memory_of_eigenbases_is_what_training_takes_beside_the_moments(size):
    """A block of one row is its own eigenbasis, and none is kept."""
    plan, net = BlockPlan(block_size=size, split="block"), Mixed()
    shapes = gather.shapes_of(find_targets(net)[0])
    refresh = timing.Refresh(shapes, plan, "eigh")
    refresh()
    optimizer = thor.THOR(net, 1e-3, block_size=plan)
    kept = sum(p.nbytes for layer in optimizer.captured for f in (layer.a, layer.g) for p in f.parameters)
    assert timing.state_bytes(shapes, plan, "eigh") == refresh.bytes == kept


def test_a_refresh_inverts_every_block_of_every_factor():
    shapes = [FactorShape("x", "a", 10, 2), FactorShape("x", "g", 4, 1)]
    refresh = timing.Refresh(shapes, BlockPlan(block_size=5, split="block"), "lapack")
    refresh()
    for factor in refresh.factors:
        damped = factor.dense() + 0.1 * np.eye(factor.cut.dim)
        np.testing.assert_allclose(
            factor.dense_inverse() @ damped, np.broadcast_to(np.eye(factor.cut.dim), damped.shape), atol=1e-4
        )


def test_a_refresh_of_eigenbases_diagonalises_every_block_of_every_factor():
    shapes = [FactorShape("x", "a", 10, 2), FactorShape("x", "g", 4, 1)]
    refresh = timing.Refresh(shapes, BlockPlan(block_size=5, split="block"), "eigh")
    refresh()
    for factor in refresh.factors:
        basis = factor.dense_basis()
        turned = basis.transpose(0, 2, 1) @ factor.dense() @ basis
        np.testing.assert_allclose(turned * (1 - np.eye(factor.cut.dim)), 0, atol=1e-4)
        assert np.all(turned.diagonal(axis1=1, axis2=2) > 0)


def test_the_launch_floor_reaches_as_far_as_times_are_flat():
    dims = [1, 16, 64, 256]
    assert largest_at_launch_floor(dims, [1.0, 1.1, 1.4, 9.0]) == 64
    assert largest_at_launch_floor(dims, [1.0, 1.6, 4.0, 9.0]) is None
    assert largest_at_launch_floor(dims, [1.0, 1.0, 1.0, 1.0]) == 256
