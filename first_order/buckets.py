"""Which tensors Adafactor moves together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import Parameter, nn

from first_order.factored import Products, Reductions, StackedReductions
from first_order.tensors import working_type

#: With foreach=None, tensors of up to so many entries are stacked: an operator's fixed cost outweighs the copies.
STACK_LIMIT = 16384


@dataclass(frozen=True)
class Bucket:
    """Parameters of one group, shape and type.

    Attributes:
        group: its number.
        members: indices into the optimizer's parameters.
        count: how many are stacked; 0 for one alone, without a leading axis.
        start: of its members among the group's steps.
        name: of its state.
    """

    group: int
    members: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any
    count: int
    start: int
    name: str

    def stacked(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A member's shape, with the leading axis if there is one."""
        return (self.count, *shape) if self.count else tuple(shape)

    @property
    def scalars(self) -> tuple[int, ...]:
        """Shape of one number a member, so that it broadcasts."""
        return (self.count,) + (1,) * len(self.shape) if self.count else ()


def make_buckets(
    group: int, members: list[int], parameters: Sequence[Parameter], foreach: bool | None
) -> list[Bucket]:
    """The buckets of a group, in the order in which their first members come."""
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


def averages(bucket: Bucket, products: bool) -> nn.Cell:
    """What averages a bucket's tensors, by products with constants or by reductions."""
    if products:
        return Products(bucket.shape, bucket.count, working_type(bucket.dtype))
    return StackedReductions() if bucket.count else Reductions()
