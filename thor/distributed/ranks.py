"""Data parallel training: the collectives, inside compiled steps and on the host.

Every rank computes gradients and fresh factors of its share of the batch. Both are averaged over all ranks, *then* the
factors are inverted: the mean of inverses is not the inverse of the mean. Who inverts what is told in placement.py.

    plain step       gradients averaged        then, where a layer's inverses lie on some ranks only: its direction,
    curvature step   and factors with them     computed by them, sent to the others of the row
    refresh          each block inverted by one rank, its inverse sent to the ranks of the column that holds it

The engine is MindSpore's own: AllReduce (sum), AllGather and Broadcast of float32, which every backend has.
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
        grad_worker_fraction: share of the ranks that hold a layer's inverses and precondition its gradient. 1: all of
            them, which needs no message a step; 1 / ranks or 0: one rank a layer, which needs the least memory, and a
            message a step for its direction; between: groups. ``ranks * fraction`` must divide the ranks.
        per: what one rank inverts as a whole: "layer", "factor" or "block" (see :func:`place` in placement.py).
        fusion_mib: tensors travel together in messages of at most this size.
        shared: False lets every rank invert everything for itself, without a message: the naive way, to compare with.
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
        """Numbers in one message."""
        return max(1, int(self.fusion_mib * 2**20 / 4))


class Ranks:
    """The ranks of a job as this process sees them: its number, its grid, and what they say to each other."""

    def __init__(self, rank: int, grid: Grid, sharing: Sharing):
        self.rank, self.grid, self.sharing = rank, grid, sharing
        self.row = self._group("row", grid.row_ranks(grid.row_of(rank)))
        self.column = self._group("column", grid.column_ranks(self.own_column))
        self.bytes = 0  # that this rank put into messages on the host

    @property
    def own_column(self) -> int:
        """The column whose layers this rank holds."""
        return self.grid.column_of(self.rank)

    def _group(self, kind: str, members: tuple[int, ...]) -> str | None:
        """Name of the communication group; None for this rank alone."""
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
        """Sum of a float32 vector over all ranks."""
        self.bytes += 4 * values.size
        return ops.AllReduce()(Tensor(values.astype(np.float32))).asnumpy()

    def of_first(self, values: np.ndarray) -> np.ndarray:
        """Rank 0's values of a float32 vector, on every rank."""
        return self.total(values if self.rank == 0 else np.zeros_like(values))

    def gathered_in_column(self, values: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """Every float32 vector of this rank's column, by row; ``lengths`` are theirs, known to all."""
        return self._gathered(values, lengths, self.column, self.grid.row_of(self.rank))

    def gathered_in_row(self, values: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """Every float32 vector of this rank's row, by column."""
        return self._gathered(values, lengths, self.row, self.own_column)

    def _gathered(self, values: np.ndarray, lengths: Sequence[int], group: str | None, place: int) -> list[np.ndarray]:
        """Padded to the longest, and in pieces of the message's size; ``place`` is this rank's in the group."""
        if group is None:
            return [values]
        longest = max(lengths)
        if not longest:
            return [values[:0] for _ in lengths]
        self.bytes += 4 * longest
        mine = np.zeros(longest, np.float32)
        mine[: len(values)] = values
        step = self.sharing.fusion
        gather = _gathering(group, place, len(lengths))
        parts = [gather(mine[first : first + step]) for first in range(0, longest, step)]
        whole = np.concatenate(parts, 1)
        return [whole[index, :length] for index, length in enumerate(lengths)]


def copy_first(parameters: Sequence[Parameter]) -> None:
    """Set each Parameter to rank 0's value, in place: to the bit, whatever its type.

    A CPU's Broadcast knows float32 and int32, and takes others for one of them without a word.
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


def _gathering(group: str, place: int, members: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function from this rank's vector [n] to those of all members [members, n].

    Where the device's AllGather knows no groups, a sum does it, to which each member gives zeros but for its own row.
    """
    if device.supports_group_all_gather() or group == _world():
        gather = ops.AllGather(group)
        return lambda mine: gather(Tensor(mine)).asnumpy().reshape(members, -1)
    add_up = ops.AllReduce(ops.ReduceOp.SUM, group)

    def through_sum(mine: np.ndarray) -> np.ndarray:
        rows = np.zeros((members, len(mine)), np.float32)
        rows[place] = mine
        return add_up(Tensor(rows)).asnumpy()

    return through_sum


def _world() -> str:
    from mindspore.communication import GlobalComm

    return str(GlobalComm.WORLD_COMM_GROUP)


_groups: set[str] = set()  # MindSpore makes a group of a name once in a process


def ranks_of_context(sharing: Sharing | None) -> Ranks | None:
    """The ranks that the parallel context tells of; None for one device alone."""
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
    """Networks of their own are not always wrong under msrun, but nothing else would show that they were not meant."""
    count = environment.get("MS_WORKER_NUM", "")
    if environment.get("MS_ROLE") == "MS_WORKER" and count.isdecimal() and int(count) > 1:
        logger.warning(
            "this process is one of %d workers (MS_WORKER_NUM), but parallel_mode is %r: each trains a network of its "
            "own; to train one together call init() and "
            "ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True) "
            "before THOR is made",
            int(count), mode,
        )  # fmt: skip
