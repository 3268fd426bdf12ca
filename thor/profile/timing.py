"""Times of THOR's own batched, compiled inverse on the current device, or of its eigenbases.

The method "eigh" stands for eigenbases; with it, what is said of an inverse here holds for the eigenvectors of a block.

Two things are timed. A *call* inverts one block; its time is the paper's p_n and includes the fixed cost of a call, the
*launch floor*. The time at block size 1 is taken as the launch floor: a p_n close to it does not depend on the block
size. (In training, THOR computes reciprocals for blocks of size 1; here the same routine is timed for all sizes.) A
*refresh* inverts all blocks of a network, in the buckets that training uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from thor.curvature.eigenbasis import BasisJob, Diagonalizer, eigenvectors
from thor.curvature.factor import BasisFactor, Factor
from thor.curvature.inverter import Inverter, Job
from thor.curvature.method_names import EIGH
from thor.curvature.refresh_job import RefreshJob, RefreshMethod
from thor.factors.blocks import BlockPlan, numbers_in
from thor.profile.factor_shape import FactorShape, Timing

MIN_REPEATS, MAX_REPEATS = 7, 100
SECONDS_PER_SIZE = 0.3
SECONDS_PER_TURN = 2e-3


def repeat(call: Callable[[], Any], budget: float) -> Timing:
    """Time ``call`` for ``budget`` seconds after one warm-up, but at least 3 and at most 100 times."""
    call()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start < budget and len(times) < MAX_REPEATS):
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return _summary(times)


def positive_definite(size: int, count: int = 1) -> np.ndarray:
    """Copies [count, size, size] of one well-conditioned matrix; the time of an inverse does not depend on values."""
    rng = np.random.default_rng(size)
    root = rng.standard_normal((size, min(size, 64))).astype(np.float32) / 8
    matrix = root @ root.T + np.eye(size, dtype=np.float32)
    return np.broadcast_to(matrix, (count, size, size))


def time_calls(sizes: Sequence[int], counts: Sequence[int], method: str) -> list[Timing]:
    """Time the inverse of ``counts[i]`` blocks of size ``sizes[i]``, for each i.

    Every turn times each size once, so that a temporary slowdown of the machine affects all sizes alike. Short calls
    are repeated within a turn and averaged. A call includes the wait for its result.
    """
    calls = [_inversion(size, count, method) for size, count in zip(sizes, counts, strict=True)]
    repeats_per_turn = [max(1, min(50, int(SECONDS_PER_TURN / _seconds_of_call(call)))) for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    start = time.perf_counter()
    while len(times[0]) < MIN_REPEATS or (
        time.perf_counter() - start < SECONDS_PER_SIZE * len(sizes) and len(times[0]) < MAX_REPEATS
    ):
        for own, call, repeats in zip(times, calls, repeats_per_turn, strict=True):
            before = time.perf_counter()
            for _ in range(repeats):
                call()
            own.append((time.perf_counter() - before) / repeats)
    return [_summary(own) for own in times]


def _inversion(size: int, count: int, method: str) -> Callable[[], Any]:
    host = np.ascontiguousarray(positive_definite(size, count))
    if method == EIGH:
        return lambda: eigenvectors(host)
    algebra = Inverter(method).algebra
    blocks = host if method == "lapack" else algebra.tensor(host)
    damping = np.full(count, 0.1, np.float32)

    def call() -> Any:
        return algebra.invert([blocks], damping)

    return call


def _seconds_of_call(call: Callable[[], Any]) -> float:
    """Seconds of the second call; the first one compiles."""
    call()
    before = time.perf_counter()
    call()
    return max(time.perf_counter() - before, 1e-7)


def _summary(times: list[float]) -> Timing:
    low, median, high = (float(value) for value in np.percentile(times, (25, 50, 75)))
    return Timing(median, low, high, len(times))


class Refresh:
    """The refresh of all factors under one plan. It needs only their shapes: the factors hold synthetic values."""

    def __init__(self, shapes: Sequence[FactorShape], plan: BlockPlan, method: str):
        self.method: RefreshMethod = Diagonalizer() if method == EIGH else Inverter(method)
        kind = BasisFactor if method == EIGH else Factor
        self.factors: list[Any] = [kind(s.name, s.cut(plan), s.copies) for s in shapes]
        for factor in self.factors:
            cut = factor.cut
            filler = positive_definite(cut.size, factor.copies * cut.count)
            factor.blocks.set_data(Tensor(filler.reshape(factor.blocks.shape).copy(), ms.float32))
            if cut.split == "block+rank":
                factor.beside.set_data(Tensor(factor.probe.asnumpy().copy()))

    @property
    def bytes(self) -> int:
        """Bytes of the curvature state."""
        return sum(p.nbytes for factor in self.factors for p in factor.parameters)

    def __call__(self) -> None:
        """Invert all factors, or find their eigenbases, and commit the results to the caches."""
        jobs = [_job(factor) for factor in self.factors if factor.cache]
        self.method.refresh(jobs)
        for job in jobs:
            job.commit()


def _job(factor: Any) -> RefreshJob:
    if isinstance(factor, BasisFactor):
        return BasisJob(factor)
    return Job(factor, np.full(factor.copies, 0.1, np.float32))


def state_bytes(shapes: Sequence[FactorShape], plan: BlockPlan, method: str) -> int:
    """The bytes of curvature state, as :attr:`Refresh.bytes`, without allocating it."""
    total = 0
    for shape in shapes:
        cut = shape.cut(plan)
        cache = cut.basis_shapes(shape.copies) if method == EIGH else cut.cache_shapes(shape.copies)
        total += 4 * numbers_in((*cut.estimate_shapes(shape.copies), *cache))
    return total
