"""The ranks of a data-parallel job, and the collectives that run on the host.

Every rank computes gradients and fresh factors of its part of the batch. Both are averaged over all ranks *before* the
factors are inverted, because the mean of inverses is not the inverse of the mean. The layout of the ranks in rows and
columns is described in placement.py; collectives inside compiled steps are in reduce.py.

    plain step       averages the gradients over all ranks; a layer whose inverses only some ranks hold gets its
                     direction from them, along each row
    curvature step   averages the fresh factors too
    refresh          each block is inverted by one rank, which sends the inverse to its column

All collectives are MindSpore's: AllReduce (sum), AllGather and Broadcast.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from first_order.checks import flag, number
from thor.distributed.placement import PER, Grid
from thor.runtime import device

logger = logging.getLogger("thor")


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How ranks share the second-order work.

    Args:
        grad_worker_fraction: fraction of the ranks that hold a layer's inverses and precondition its gradient. 1: all
            ranks, without a message for the directions. 1 / ranks or 0: one rank per layer, with the least memory and a
            message for its direction at every step. Between: groups of ranks. ``ranks * fraction`` must divide the
            number of ranks.
        per: the unit that one rank inverts: "layer", "factor" or "block" (see :func:`place` in placement.py).
        fusion_mib: size of a message, in MiB, up to which tensors are sent together.
        shared: False: every rank inverts all factors itself, and no inverses are sent; a baseline for comparisons.
    """

    grad_worker_fraction: float = 1.0
    per: str = "block"
    fusion_mib: float = 16.0
    shared: bool = True

    def __post_init__(self) -> None:
        number("grad_worker_fraction", self.grad_worker_fraction, 0.0, 1.0)
        if self.per not in PER:
            raise ValueError(f"per must be one of {', '.join(PER)}, but got {self.per!r}")
        number("fusion_mib", self.fusion_mib, 0.0, open_low=True)
        if not flag("shared", self.shared) and self.grad_worker_fraction != 1.0:
            raise ValueError(
                f"grad_worker_fraction must be 1 with shared=False, where every rank inverts everything, "
                f"but got {self.grad_worker_fraction}"
            )

    @property
    def fusion(self) -> int:
        """The number of float32 values in a message of ``fusion_mib``."""
        return max(1, int(self.fusion_mib * 2**20 / 4))


class Ranks:
    """The ranks of a job as this process sees them, and their collectives on the host.

    Attributes:
        rank: of this process.
        grid: rows and columns of the ranks.
        sharing: how the ranks share the second-order work.
        row, column: names of this rank's communication groups; None for a group of this rank only.
        bytes: bytes that this rank has put into messages on the host.
    """

    def __init__(self, rank: int, grid: Grid, sharing: Sharing):
        self.rank, self.grid, self.sharing = rank, grid, sharing
        self.row = self._group("row", grid.row_ranks(grid.row_of(rank)))
        self.column = self._group("column", grid.column_ranks(self.own_column))
        self.bytes = 0

    @property
    def own_column(self) -> int:
        """The column whose layers this rank holds."""
        return self.grid.column_of(self.rank)

    def _group(self, kind: str, members: tuple[int, ...]) -> str | None:
        """The name of the communication group of ``members``, created if need be; None for a single member."""
        from mindspore.communication import create_group

        if len(members) == 1:
            return None
        if len(members) == self.grid.ranks:
            return _world()
        name = f"thor_{kind}_{'_'.join(map(str, members))}"
        if name not in _groups:
            create_group(name, list(members))
            _groups.add(name)
        return name

    def total(self, values: np.ndarray) -> np.ndarray:
        """The sum of a float32 vector over all ranks."""
        self.bytes += 4 * values.size
        return ops.AllReduce()(Tensor(values.astype(np.float32))).asnumpy()

    def of_first(self, values: np.ndarray) -> np.ndarray:
        """Rank 0's float32 vector, on every rank."""
        return self.total(values if self.rank == 0 else np.zeros_like(values))

    def gathered_in_column(self, values: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """The float32 vectors of all ranks of this column, in the order of rows.

        Args:
            values: this rank's vector.
            lengths: of all their vectors, the same on every rank.
        """
        return self._gathered(values, lengths, self.column, self.grid.row_of(self.rank))

    def gathered_in_row(self, values: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """The float32 vectors of all ranks of this row, in the order of columns; see gathered_in_column."""
        return self._gathered(values, lengths, self.row, self.own_column)

    def _gathered(self, values: np.ndarray, lengths: Sequence[int], group: str | None, place: int) -> list[np.ndarray]:
        """The vectors of all members of a group, in which this rank is number ``place``.

        Vectors are padded to the longest one and sent in messages of at most ``sharing.fusion`` numbers.
        """
        if group is None:
            return [values]
        longest = max(lengths)
        if not longest:
            return [values[:0] for _ in lengths]
        self.bytes += 4 * longest
        mine = np.zeros(longest, np.float32)
        mine[: len(values)] = values
        step = self.sharing.fusion
        gather = _gather_function(group, place, len(lengths))
        parts = [gather(mine[first : first + step]) for first in range(0, longest, step)]
        gathered = np.concatenate(parts, 1)
        return [gathered[index, :length] for index, length in enumerate(lengths)]


def copy_first(parameters: Sequence[Parameter]) -> None:
    """Set each Parameter, of any type, in place to exactly rank 0's value.

    MindSpore's Broadcast on a CPU supports only float32 and int32 and silently misreads other types. Therefore 16-bit
    floats are sent as float32, which is exact, and other types as int32 words of the same bytes.
    """
    broadcast = ops.Broadcast(0)
    for parameter in parameters:
        if parameter.dtype in (ms.float32, ms.int32):
            value = broadcast((parameter.value(),))[0]
        elif parameter.dtype in (ms.float16, ms.bfloat16):
            value = broadcast((parameter.value().astype(ms.float32),))[0].astype(parameter.dtype)
        else:
            own = parameter.asnumpy()
            words = np.frombuffer(own.tobytes() + bytes(-own.nbytes % 4), np.int32)
            found = broadcast((Tensor(words.copy()),))[0].asnumpy().tobytes()[: own.nbytes]
            value = Tensor(np.frombuffer(found, own.dtype).reshape(own.shape).copy())
        ops.assign(parameter, value)


def _gather_function(group: str, place: int, members: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function from this rank's vector [n] to the vectors of all members [members, n].

    Where the device's AllGather does not support groups, an AllReduce replaces it: each member contributes a matrix
    that is zero except for its own row.
    """
    if device.supports_group_all_gather() or group == _world():
        gather = ops.AllGather(group)
        return lambda mine: gather(Tensor(mine)).asnumpy().reshape(members, -1)
    all_reduce = ops.AllReduce(ops.ReduceOp.SUM, group)

    def gather_by_sum(mine: np.ndarray) -> np.ndarray:
        rows = np.zeros((members, len(mine)), np.float32)
        rows[place] = mine
        return all_reduce(Tensor(rows)).asnumpy()

    return gather_by_sum


def _world() -> str:
    from mindspore.communication import GlobalComm

    return str(GlobalComm.WORLD_COMM_GROUP)


_groups: set[str] = set()  # names of the groups created so far: MindSpore creates each name only once in a process


def ranks_of_context(sharing: Sharing | None) -> Ranks | None:
    """The ranks of MindSpore's parallel context; None for a single process.

    Args:
        sharing: how the ranks share the second-order work; None for the default.

    Raises:
        TypeError: if ``sharing`` is neither a Sharing nor None.
        ValueError: if ``sharing`` is given without data parallelism.
        RuntimeError: if ``parallel_mode`` is neither stand_alone nor data_parallel.
    """
    if sharing is not None and not isinstance(sharing, Sharing):
        raise TypeError(f"sharing must be a thor.Sharing or None, but got {sharing!r} of type {type(sharing).__name__}")
    mode = ms.get_auto_parallel_context("parallel_mode")
    if mode == ms.ParallelMode.STAND_ALONE:
        if sharing is not None:
            raise ValueError(
                f"sharing is for data parallel training, but parallel_mode is {mode!r}: call init() and "
                f"ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True) "
                f"before THOR is made"
            )
        _warn_of_workers(mode, os.environ)
        return None
    if mode != ms.ParallelMode.DATA_PARALLEL:
        raise RuntimeError(f"THOR trains with parallel_mode stand_alone or data_parallel, but it is {mode!r}")
    from mindspore.communication import get_group_size, get_rank

    sharing = sharing or Sharing()
    count = get_group_size()
    return Ranks(get_rank(), Grid.from_fraction(count, sharing.grad_worker_fraction), sharing) if count > 1 else None


def _warn_of_workers(mode: str, environment: Mapping[str, str]) -> None:
    """Warn if this process is one of several workers of msrun that each train a network of their own.

    This is no error, because it may be intended. Without the warning, a forgotten parallel mode would go unnoticed.
    """
    count = environment.get("MS_WORKER_NUM", "")
    if environment.get("MS_ROLE") == "MS_WORKER" and count.isdecimal() and int(count) > 1:
        logger.warning(
            "this process is one of %d workers (MS_WORKER_NUM), but parallel_mode is %r: each trains a network of its "
            "own; to train one together call init() and "
            "ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True) "
            "before THOR is made",
            int(count), mode,
        )  # fmt: skip
