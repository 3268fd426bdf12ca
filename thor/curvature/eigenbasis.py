"""The renewal of eigenbases from the factors' estimates: the eigenvectors of every block, by LAPACK on the host.

The blocks are small, and a renewal is rare. In a data-parallel job each rank decomposes a part of the blocks, and an
exchange collects the parts (thor/distributed/exchange.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor

from thor.curvature.backends import HostAlgebra
from thor.curvature.factor import BasisFactor
from thor.curvature.refresh_job import Exchange, RefreshJob

#: An eigenvalue below this share of the largest one is rounding: its direction has no curvature.
NO_CURVATURE = 1e-7


def eigenvectors(blocks: np.ndarray) -> np.ndarray:
    """The orthonormal eigenvectors of symmetric blocks [m, b, b] in columns, by rising eigenvalue.

    The column of a direction without curvature is zero.

    Raises:
        numpy.linalg.LinAlgError: if LAPACK finds no eigenvectors.
    """
    values, vectors = np.linalg.eigh(blocks)
    with_curvature = values > NO_CURVATURE * np.maximum(values[:, -1:], 0.0)
    found: np.ndarray = vectors * with_curvature[:, None, :]
    return found


def bases_of(blocks: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """The bases [m, b, b] of ``blocks`` [m, b, b], of which the first ``rows`` [m] count; None if one cannot be found.

    What lies behind these rows is padding, and has no basis.
    """
    bases = np.zeros_like(blocks)
    for count in np.unique(rows):
        chosen = rows == count
        try:
            bases[chosen, :count, :count] = eigenvectors(blocks[chosen, :count, :count])
        except np.linalg.LinAlgError:
            return None
    return bases if np.isfinite(bases.sum(dtype=np.float64)) else None


@dataclass
class BasisJob(RefreshJob):
    """The renewal of one factor's basis; no block gets damping."""

    symmetric = False

    factor: BasisFactor


class Diagonalizer:
    """Renews eigenbases.

    Args:
        exchange: divides the work among the ranks of a job; None if each process does all of it.

    Attributes:
        method: what finds the eigenvectors.
        seconds: duration of each call of :meth:`refresh`.
    """

    def __init__(self, exchange: Exchange | None = None):
        self.method, self.exchange = "lapack", exchange
        self.algebra = HostAlgebra()
        self.seconds: list[float] = []

    def refresh(self, jobs: list[BasisJob]) -> None:
        """Find the basis of each job's factor; no Parameter changes until the jobs are committed."""
        start = time.perf_counter()
        if self.exchange is not None:
            self.exchange.divide(jobs)
        for job in jobs:
            self._decompose(job)
        if self.exchange is not None:
            self.exchange.share(jobs, time.perf_counter() - start, self.algebra)
            self.exchange.settle(jobs)
        for job in jobs:
            if job.factor.held and not job.failed:
                basis = np.ascontiguousarray(job.computed.reshape(job.factor.cache_shapes[0]), np.float32)
                job.results.append((job.factor.basis, Tensor(basis)))
        self.seconds.append(time.perf_counter() - start)

    def _decompose(self, job: BasisJob) -> None:
        factor, cut = job.factor, job.factor.cut
        blocks = factor.blocks.asnumpy().reshape(-1, cut.size, cut.size)[job.part]
        rows = np.full((factor.copies, cut.count), cut.size)
        rows[:, -1] = cut.dim - (cut.count - 1) * cut.size
        if not np.isfinite(blocks.sum(dtype=np.float64)):
            job.failed = True
            return
        job.computed = bases_of(blocks, rows.reshape(-1)[job.part])
        job.failed = job.computed is None
