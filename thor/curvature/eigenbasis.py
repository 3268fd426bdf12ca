"""The renewal of eigenbases from the factors' estimates: the eigenvectors of every block, by LAPACK on the host.

The blocks are small, and a renewal is rare. In a data-parallel job each rank decomposes a part of the blocks, and an
exchange collects the parts (thor/distributed/exchange.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

    The column of a direction without curvature is zero. A block of zeros, of which nothing is known yet, keeps all
    columns, so that its layer can move.

    Raises:
        numpy.linalg.LinAlgError: if LAPACK finds no eigenvectors.
    """
    values, vectors = np.linalg.eigh(blocks)
    largest = values[:, -1:]
    with_curvature = (values > NO_CURVATURE * largest) | (largest <= 0)
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


def turned_columns(moment: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """M R [c, m, n b] for a moment M [c, m, n b] in the basis ``old`` of its columns, with R = Q_old^T Q_new.

    Bases are block-diagonal, [c, n, b, b]. M R is the moment's coordinates in the basis ``new``.
    """
    copies, count, size, _ = old.shape
    blocks = moment.reshape(copies, -1, count, size).swapaxes(1, 2)
    found = blocks @ (old.swapaxes(2, 3) @ new)
    return found.swapaxes(1, 2).reshape(moment.shape)


def turned_rows(moment: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """R^T M [c, n b, m] for a moment M [c, n b, m] in the basis ``old`` of its rows: as :func:`turned_columns`."""
    copies, count, size, _ = old.shape
    found = new.swapaxes(2, 3) @ old @ moment.reshape(copies, count, size, -1)
    return found.reshape(moment.shape)


def _finite(matrices: np.ndarray) -> bool:
    return bool(np.isfinite(matrices.sum(dtype=np.float64)))


@dataclass
class BasisJob(RefreshJob):
    """The renewal of one factor's basis; no block gets damping.

    Attributes:
        blocks: the estimates [m, b, b] of the blocks in ``part``.
        rows: [m], how many rows of each block count.
    """

    symmetric = False

    factor: BasisFactor
    blocks: Any = None
    rows: Any = None


class Diagonalizer(RefreshMethod):
    """Renews eigenbases."""

    beside_steps = True

    def __init__(self, exchange: Exchange | None = None):
        super().__init__(EIGH, HostAlgebra(), exchange)

    def take(self, jobs: list[BasisJob], *, copy: bool) -> None:
        """Take the blocks of each job's part, and how many rows of each count."""
        for job in jobs:
            factor, cut = job.factor, job.factor.cut
            rows = np.full((factor.copies, cut.count), cut.size)
            rows[:, -1] = cut.dim - (cut.count - 1) * cut.size
            blocks = factor.blocks.asnumpy().reshape(-1, cut.size, cut.size)[job.part]
            job.blocks, job.rows = blocks.copy() if copy else blocks, rows.reshape(-1)[job.part]

    def compute(self, jobs: list[BasisJob]) -> None:
        """Find the basis of each block."""
        small = [job for job in jobs if job.factor.cut.size <= SIDE_BY_SIDE]
        found = in_threads(lambda job: bases_of(job.blocks, job.rows), small)
        for job, bases in zip(small, found, strict=True):
            job.computed = bases
        for job in jobs:
            if job.factor.cut.size > SIDE_BY_SIDE:
                job.computed = bases_of(job.blocks, job.rows)
            job.failed = job.computed is None

    def store(self, jobs: list[BasisJob]) -> None:
        """Take the bases of held factors as they are."""
        for job in (job for job in jobs if job.factor.held):
            basis = np.ascontiguousarray(job.computed.reshape(job.factor.cache_shapes[0]), np.float32)
            job.results.append((job.factor.basis, Tensor(basis)))
