"""The renewal of eigenbases from the factors' estimates: the eigenvectors of every block, by LAPACK on the host.

The blocks are small, and a renewal is rare. In a data-parallel job each rank decomposes a part of the blocks, and an
exchange collects the parts (thor/distributed/exchange.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mindspore import Tensor

from thor.curvature.backends import HostAlgebra
from thor.curvature.factor import BasisFactor
from thor.curvature.method_names import EIGH
from thor.curvature.refresh_job import Exchange, RefreshJob, RefreshMethod
from thor.runtime.host_threads import in_threads

#: Up to this size blocks are decomposed side by side, each in one thread; larger ones are left to BLAS's own threads.
SIDE_BY_SIDE = 1024
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

    What lies behind these rows is padding, and has no basis. Blocks that are not finite have none either.
    """
    if not _finite(blocks):
        return None
    bases = np.zeros_like(blocks)
    for count in np.unique(rows):
        chosen = rows == count
        try:
            bases[chosen, :count, :count] = eigenvectors(blocks[chosen, :count, :count])
        except np.linalg.LinAlgError:
            return None
    return bases if _finite(bases) else None


def _finite(matrices: np.ndarray) -> bool:
    return bool(np.isfinite(matrices.sum(dtype=np.float64)))


@dataclass
class BasisJob(RefreshJob):
    """The renewal of one factor's basis; no block gets damping."""

    symmetric = False

    factor: BasisFactor


class Diagonalizer(RefreshMethod):
    """Renews eigenbases."""

    def __init__(self, exchange: Exchange | None = None):
        super().__init__(EIGH, HostAlgebra(), exchange)

    def compute(self, jobs: list[BasisJob]) -> None:
        """Find the basis of each block."""
        work = [self._blocks_and_rows(job) for job in jobs]
        small = [at for at, job in enumerate(jobs) if job.factor.cut.size <= SIDE_BY_SIDE]
        found = dict(zip(small, in_threads(lambda at: bases_of(*work[at]), small), strict=True))
        for at, job in enumerate(jobs):
            job.computed = found[at] if at in found else bases_of(*work[at])
            job.failed = job.computed is None

    def _blocks_and_rows(self, job: BasisJob) -> tuple[np.ndarray, np.ndarray]:
        """The blocks [m, b, b] of a job's part, and how many rows [m] of each count."""
        factor, cut = job.factor, job.factor.cut
        rows = np.full((factor.copies, cut.count), cut.size)
        rows[:, -1] = cut.dim - (cut.count - 1) * cut.size
        blocks = factor.blocks.asnumpy().reshape(-1, cut.size, cut.size)
        return blocks[job.part], rows.reshape(-1)[job.part]

    def store(self, jobs: list[BasisJob]) -> None:
        """Take the bases of held factors as they are."""
        for job in (job for job in jobs if job.factor.held):
            basis = np.ascontiguousarray(job.computed.reshape(job.factor.cache_shapes[0]), np.float32)
            job.results.append((job.factor.basis, Tensor(basis)))
