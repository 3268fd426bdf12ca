"""How long an inverse takes, as THOR will do it: its own batched, compiled inverse, on the device at hand.

Two clocks. The *call* inverts one block: the p_n of the paper's curve, with the fixed cost of a call inside. That cost,
the *launch floor*, is measured at block size 1 and reported, because below it a curve is flat and says nothing about
block sizes. The *refresh* inverts all blocks of a network at once, in the buckets that training uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from thor.blocks import BlockPlan
from thor.inverter import Inverter, Job
from thor.layers import Factor

MIN_REPEATS, MAX_REPEATS = 5, 500
SECONDS_PER_DIM = 0.2
#: A time within this factor of the launch floor says nothing about the block's size.
FLOOR_FACTOR = 1.5


@dataclass(frozen=True)
class Timing:
    """Seconds of one thing repeated: the median and the quartiles."""

    median: float
    low: float
    high: float
    repeats: int


def repeat(call: Callable[[], Any], budget: float = SECONDS_PER_DIM, least: int = MIN_REPEATS) -> Timing:
    """Time ``call`` after one warm-up (which compiles), until the budget of seconds or enough repeats."""
    call()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < least or (time.perf_counter() - start < budget and len(times) < MAX_REPEATS):
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    low, median, high = (float(value) for value in np.percentile(times, (25, 50, 75)))
    return Timing(median, low, high, len(times))


def positive_definite(size: int, count: int = 1) -> np.ndarray:
    """A stack [count, size, size] of one well-conditioned matrix: the time of an inverse does not depend on values."""
    rng = np.random.default_rng(size)
    root = rng.standard_normal((size, min(size, 64))).astype(np.float32) / 8
    matrix = root @ root.T + np.eye(size, dtype=np.float32)
    return np.broadcast_to(matrix, (count, size, size))


def time_call(size: int, method: str, count: int = 1) -> Timing:
    """One call of the inverse on ``count`` blocks of ``size``, its result back on the host."""
    algebra = Inverter(method).algebra
    blocks = (
        algebra.tensor(positive_definite(size, count).copy()) if method != "lapack" else positive_definite(size, count)
    )
    damping = np.full(count, 0.1, np.float32)

    def call() -> Any:
        return algebra.invert([blocks], damping)

    return repeat(call)


@dataclass(frozen=True)
class FactorShape:
    """What a factor needs to be cut: enough to time and to measure its memory."""

    layer: str
    side: str  # "a" | "g"
    dim: int
    copies: int

    @property
    def name(self) -> str:
        """As its Parameters are called."""
        return f"{self.layer}.{self.side}"


class Refresh:
    """A whole network's refresh under one plan, without the network: all its factors, filled with a stand-in."""

    def __init__(self, shapes: Sequence[FactorShape], plan: BlockPlan, method: str):
        self.inverter = Inverter(method)
        self.factors = [Factor(s.name, plan.cut(s.dim, s.layer, s.side), s.copies) for s in shapes]
        for factor in self.factors:
            cut = factor.cut
            filler = positive_definite(cut.size, factor.copies * cut.count)
            factor.blocks.set_data(Tensor(filler.reshape(factor.blocks.shape).copy(), ms.float32))
            if cut.split == "block+rank":
                factor.beside.set_data(Tensor(factor.probe.asnumpy().copy()))

    @property
    def bytes(self) -> int:
        """The curvature state's memory."""
        return sum(p.nbytes for factor in self.factors for p in factor.parameters)

    def __call__(self) -> None:
        """Invert everything and make it the cached inverse."""
        jobs = [Job(factor, np.full(factor.copies, 0.1, np.float32)) for factor in self.factors]
        self.inverter.refresh(jobs)
        for job in jobs:
            job.commit()


def state_bytes(shapes: Sequence[FactorShape], plan: BlockPlan) -> int:
    """What :attr:`Refresh.bytes` would say, without allocating it."""
    total = 0
    for shape in shapes:
        cut = plan.cut(shape.dim, shape.layer, shape.side)
        thin = shape.copies * cut.padded * cut.rank if cut.rank else 1
        total += 4 * (2 * shape.copies * cut.count * cut.size**2 + 4 * thin + 1)
    return total


def floor_reaches(dims: Sequence[int], seconds: Sequence[float]) -> int | None:
    """The largest candidate whose time is within 1.5 times the launch floor; None if the first is the only one."""
    flat = [dim for dim, value in zip(dims, seconds, strict=True) if value <= FLOOR_FACTOR * seconds[0]]
    return max(flat) if len(flat) > 1 else None
