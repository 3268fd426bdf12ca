"""The ranks of a data-parallel job: how a process joins, and what the ranks exchange on the host.

msrun (scripts/cluster/launch.py) starts a job and describes it in the environment of each process. All ranks run the
same program. They agree on a loss, a request to end, or the checkpoint to resume from by small sums over all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops
from numpy.typing import ArrayLike, NDArray

from first_order.compiled import CompiledFunction
from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import validate
from thor.distributed.ranks import copy_first
from thor.runtime.errors import UserError

_SPLIT = 2**20  # a step number is sent as two float32 numbers, which are exact below 2**24


@dataclass(frozen=True)
class Ranks:
    """This process's place in its job; a single process is rank 0 of 1 and exchanges nothing.

    Attributes:
        rank: 0 to count - 1.
        count: Number of processes of the job.
    """

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """True for the one rank that writes files and shows progress."""
        return self.rank == 0

    def total(self, values: ArrayLike) -> NDArray[np.float32]:
        """Element-wise sum of a vector [n] over all ranks, in float32; all ranks must call it together."""
        mine = np.asarray(values, np.float32)
        return mine if self.count == 1 else np.asarray(_summing()(Tensor(mine)).asnumpy())

    def agree(self, loss: float, asked: bool) -> tuple[float, bool]:
        """The mean loss over the ranks, and whether any rank was asked to end."""
        if self.count == 1:
            return loss, asked
        sums = self.total([loss, float(asked)])
        return float(sums[0]) / self.count, bool(sums[1] > 0)

    def broadcast_step(self, step: int) -> int:
        """Rank 0's step number, on every rank; -1 means none."""
        high, low = divmod(step, _SPLIT)
        found = self.total([high, low] if self.leads else [0, 0])
        return int(found[0]) * _SPLIT + int(found[1])

    def wait_for_all(self) -> None:
        """Return when every rank has called this."""
        self.total([0.0])

    def average(self, parameters: Sequence[Parameter]) -> None:
        """Set each Parameter to its mean over the ranks, in the storage that compiled functions read."""
        if self.count == 1 or not parameters:
            return
        values = [parameter.asnumpy().astype(np.float32) for parameter in parameters]
        sums = self.total(np.concatenate([value.ravel() for value in values])) / self.count
        parts = np.split(sums, np.cumsum([value.size for value in values])[:-1])
        for parameter, value, part in zip(parameters, values, parts, strict=True):
            ops.assign(parameter, Tensor(part.reshape(value.shape)).astype(parameter.dtype))

    def copy_first(self, parameters: Sequence[Parameter]) -> None:
        """Set each Parameter to its value on rank 0."""
        if self.count > 1:
            copy_first(parameters)

    def settings(self, settings: TrainSettings) -> TrainSettings:
        """The settings with this rank's share of the data; UserError if they contradict the job."""
        data = settings.data
        if data.ranks not in (1, self.count):
            raise UserError(
                f"data.ranks = {data.ranks}: the job has {self.count} processes; leave data.ranks and data.rank out, "
                f"msrun sets them"
            )
        if data.ranks == self.count > 1 and data.rank not in (0, self.rank):
            raise UserError(f"data.rank = {data.rank}: this process is rank {self.rank}; leave data.rank out")
        return with_ranks(settings, self.rank, self.count)


def with_ranks(settings: TrainSettings, rank: int = 0, count: int = 1) -> TrainSettings:
    """The settings for one rank of a job, validated again: the batch size must be a multiple of the ranks."""
    values = settings.model_dump(exclude_unset=True)  # some settings exclude others, even with their defaults
    return validate({**values, "data": {**values.get("data", {}), "rank": rank, "ranks": count}})


def announced_count(environment: Mapping[str, str]) -> int:
    """Number of processes of the job, from the environment; 1 if it describes no job.

    msrun sets MS_ROLE and MS_WORKER_NUM; a rank table start (older Ascend clusters) sets RANK_TABLE_FILE and RANK_SIZE.
    """
    name = "MS_WORKER_NUM" if "MS_ROLE" in environment else "RANK_SIZE" if "RANK_TABLE_FILE" in environment else None
    if name is None:
        return 1
    text = environment.get(name, "")
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{name} = {text!r} in the environment: must be the number of processes; start with msrun")
    return int(text)


def announced_rank(environment: Mapping[str, str]) -> int:
    """Rank of this process, from the environment; 0 if it is not set, since msrun may leave it to `init`."""
    text = environment.get("RANK_ID", "")
    return int(text) if text.isdecimal() else 0


def join(settings: TrainSettings) -> Ranks:
    """Join the job that the environment describes; the device must already be selected.

    msrun runs its scheduler with the same program. That process does not return from here: it exits with the job.
    """
    count = announced_count(os.environ)
    if count == 1 and "MS_ROLE" not in os.environ:
        if settings.data.ranks > 1:
            raise UserError(
                f"data.ranks = {settings.data.ranks}, and this process is none of a job: start it with  "
                f"python scripts/cluster/launch.py --devices {settings.data.ranks} -- --config FILE"
            )
        return Ranks()
    from mindspore.communication import get_group_size, get_rank, init

    init()
    ranks = Ranks(get_rank(), get_group_size())
    if ranks.count > 1:
        ms.set_auto_parallel_context(
            parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=ranks.count
        )
    return ranks


@cache
def _summing() -> Callable[[Tensor], Tensor]:
    """A compiled sum over ranks. Call it after `init`: the operator keeps the communication group that exists now."""
    all_reduce = ops.AllReduce()

    def add_up(values: Tensor) -> Tensor:
        return all_reduce(values)

    compiled: Callable[[Tensor], Tensor] = CompiledFunction(add_up)
    return compiled
