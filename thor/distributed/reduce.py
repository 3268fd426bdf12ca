"""Sums and means over the ranks of a job, inside a compiled step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from thor.distributed.packing import runs, triangle
from thor.distributed.ranks import Sharing
from thor.runtime.graph_ops import entries_of, over


class Sums(nn.Cell):
    """Sums of tensors over the ranks of a group, in few messages, inside a compiled step.

    Messages follow one another, in the same order on every rank: collectives that a runtime may start in any order
    would meet different partners. Blocks that are symmetric travel as triangles.

    Args:
        shapes: of the tensors.
        symmetric: whether each is a stack of symmetric matrices in its last two axes.
        limit: numbers in one message.
        group: of the ranks; None for all.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], symmetric: Sequence[bool], limit: int, group: str | None):
        super().__init__(auto_prefix=False)
        self.shapes = tuple(shapes)
        self.sizes = tuple(s[-1] if even and s[-1] > 1 else 0 for s, even in zip(shapes, symmetric, strict=True))
        indices = sorted({size for size in self.sizes if size})
        self.kind = tuple(indices.index(size) if size else -1 for size in self.sizes)
        self.pack = tuple(Tensor(triangle(size)[0]) for size in indices)
        self.unpack = tuple(Tensor(triangle(size)[1]) for size in indices)
        self.lengths = tuple(
            int(np.prod(shape)) if not size else int(np.prod(shape[:-2])) * size * (size + 1) // 2
            for shape, size in zip(self.shapes, self.sizes, strict=True)
        )
        self.members = tuple(tuple(range(first, last)) for first, last in runs(self.lengths, limit))
        # where each begins in its message
        self.offsets = tuple(sum(self.lengths[run[0] : index]) for run in self.members for index in run)
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, group) if group else ops.AllReduce(ops.ReduceOp.SUM)

    @property
    def bytes(self) -> int:
        """What one call puts into messages."""
        return 4 * sum(self.lengths)

    def construct(self, values, weight):
        """Sums of weight * value; ``weight`` is a number."""
        sums = ()
        before = values[0]
        for run in self.members:
            buffer = ops.cat(over(ops.partial(self._flat, values), run))
            buffer = self.all_reduce(ops.depend(buffer * weight, before))
            before = buffer
            sums += over(ops.partial(self._whole, buffer), run)
        return sums

    def _flat(self, values, index):
        value = values[index].astype(ms.float32)
        kind, size = self.kind[index], self.sizes[index]
        if kind >= 0:
            value = ops.gather(value.reshape(-1, size * size), self.pack[kind], 1)
        return value.reshape(-1)

    def _whole(self, buffer, index):
        kind, size = self.kind[index], self.sizes[index]
        flat = entries_of(buffer, self.offsets[index], self.lengths[index])
        if kind >= 0:
            flat = ops.gather(flat.reshape(-1, size * (size + 1) // 2), self.unpack[kind], 1)
        return flat.reshape(self.shapes[index])


class Means(nn.Cell):
    """Means over all ranks of a loss and of tensors, each rank counting by its examples."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], symmetric: Sequence[bool], limit: int):
        super().__init__(auto_prefix=False)
        self.sums = Sums([(2,), *shapes], [False, *symmetric], limit, None)
        self.indices = tuple(range(len(shapes)))

    def construct(self, loss, values, examples):
        head = ops.stack((loss.astype(ms.float32), ops.ones_like(loss).astype(ms.float32)))
        sums = self.sums((head,) + values, examples)
        share = 1.0 / sums[0][1]
        means = over(ops.partial(self._mean, sums, share, values), self.indices)
        return (sums[0][0] * share).astype(loss.dtype), means

    def _mean(self, sums, share, values, index):
        return (sums[index + 1] * share).astype(values[index].dtype)


def alone(loss, values, inputs):
    """What :class:`Means` does where there is one rank."""
    return loss, values


Across = Callable[[tuple[Tensor, ...]], tuple[Any, ...]]


def mean_over_ranks(count: int, shapes: Sequence[tuple[int, ...]]) -> Across:
    """A function (tensors of these shapes) -> their element-wise means over `count` ranks; make it after `init`.

    Tensors travel together, in messages of THOR's size: on a CPU each AllReduce costs some milliseconds whatever its
    size, and nn.DistributedGradReducer makes one for each tensor (sixty small ones took 0.99 s against 0.09 s as one).
    """
    if count == 1:
        return _as_they_are
    sums, share = Sums(shapes, [False] * len(shapes), Sharing().fusion, None), 1.0 / count

    def mean(tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
        return over(_typed, sums(tensors, share), tensors)

    return mean


def _typed(value: Tensor, model: Tensor) -> Tensor:
    """The value in the model's type."""
    return value.astype(model.dtype)


def _as_they_are(tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """What one process alone needs."""
    return tensors
