"""Buckets of Adafactor: equal tensors that are stacked and updated together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F

from first_order.adafactor.factored_moments import (  # fmt: skip
    Products,
    Reductions,
    StackedReductions,
    adafactor_step,
    machine_epsilon,
    state_shapes,
)
from first_order.tensors import working_type

#: With foreach=None, tensors up to this size are stacked: for them the fixed cost of operators outweighs the copies.
STACK_LIMIT = 16384


@dataclass(frozen=True)
class Bucket:
    """Parameters of the same group, shape and type.

    Attributes:
        group: number of the group.
        members: indices into the optimizer's parameters.
        shape: shape of each member.
        dtype: type of each member.
        count: number of stacked members; 0 for a single one, which has no leading axis.
        start: position of the first member in the group's step counters.
        name: suffix of the names of its state Parameters.
    """

    group: int
    members: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any
    count: int
    start: int
    name: str

    def stacked(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """``shape`` of one member, with the bucket's leading axis if there is one."""
        return (self.count, *shape) if self.count else tuple(shape)

    @property
    def scalars(self) -> tuple[int, ...]:
        """Shape of one number per member that broadcasts against the stacked tensors."""
        return (self.count,) + (1,) * len(self.shape) if self.count else ()


def make_buckets(group: int, members: list[int], parameters: Sequence[Parameter], foreach: bool | None) -> list[Bucket]:
    """The buckets of a group, ordered by their first members."""
    alike: dict[Any, list[int]] = {}
    for index in members:
        parameter = parameters[index]
        stacks = foreach or (foreach is None and parameter.size <= STACK_LIMIT)
        key = (tuple(parameter.shape), str(parameter.dtype)) if stacks else index
        alike.setdefault(key, []).append(index)
    buckets, start = [], 0
    for indices in alike.values():
        first, more = parameters[indices[0]], len(indices) - 1
        name = f"{first.name}+{more}" if more else first.name
        count = len(indices) if more else 0
        buckets.append(Bucket(group, tuple(indices), tuple(first.shape), first.dtype, count, start, name))
        start += len(indices)
    return buckets


class BucketStep(nn.Cell):
    """Updates the Parameters of one bucket, and owns their factored second moments.

    Args:
        bucket: the bucket.
        parameters: all parameters of the optimizer.
        products: whether averages are computed by products with constants (for a CPU) or by reductions.
    """

    def __init__(self, bucket, parameters, products):
        super().__init__(auto_prefix=False)
        self.members = bucket.members
        self.weights = ParameterTuple([parameters[i] for i in bucket.members])
        self.factors = ParameterTuple([
            Parameter(ops.zeros(bucket.stacked(shape), bucket.dtype), name=f"adafactor_{name}.{bucket.name}",
                      requires_grad=False)
            for name, shape in state_shapes(bucket.shape).items()
        ])  # fmt: skip
        self.dtype, self.working = bucket.dtype, working_type(bucket.dtype)
        self.stacked, self.scalars = bucket.count > 0, bucket.scalars
        self.start, self.end = bucket.start, bucket.start + len(bucket.members)
        if products:
            self.averages = Products(bucket.shape, bucket.count, self.working)
        else:
            self.averages = StackedReductions() if bucket.count else Reductions()
        self.map = ops.composite.Map()

    def read(self, group: Any) -> None:
        """Read the options of the bucket's group."""
        self.eps1 = Tensor(machine_epsilon(group["eps"][0], self.dtype), self.working)
        self.eps2, self.d = Tensor(group["eps"][1], self.working), Tensor(group["d"], self.working)
        self.maximize = group["maximize"]

    def construct(self, gradients, weights, rhos, keep):
        """One step; ``weights`` and ``rhos`` have one number per parameter of the group, ``keep`` is one number."""
        x, g = self.weights[0], gradients[self.members[0]]
        if self.stacked:
            x, g = ops.stack(self.weights), ops.stack(self.map(F.partial(_at, gradients), self.members))
        x, g = x.astype(self.working), g.astype(self.working)
        if self.maximize:
            g = -g
        x, new = adafactor_step(
            self.averages, x, g, self.map(F.partial(_as_type, self.working), self.factors), self._own(weights),
            self._own(rhos), keep.astype(self.working), self.eps1, self.eps2, self.d,
        )  # fmt: skip
        self.map(_write, self.factors, new)
        if self.stacked:
            return self.map(_write, self.weights, ops.unstack(x))
        return _write(self.weights[0], x)

    def _own(self, numbers):
        """The numbers of the bucket's members, from those of all parameters of the group."""
        return numbers[self.start : self.end].reshape(self.scalars).astype(self.working)


def _at(values, index):
    return values[index]


def _as_type(dtype, value):
    return value.astype(dtype)


def _write(parameter, value):
    return ops.assign(parameter, value.astype(parameter.dtype))
