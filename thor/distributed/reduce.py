"""Sums and means over the ranks of a job, inside a compiled step."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from thor.distributed.packing import runs, triangle
from thor.runtime.graph_ops import entries_of, over


class Sums(nn.Cell):
    """Sums of tensors over the ranks of a group, in few messages, inside a compiled step.

    Each message depends on the one before, so that all ranks send them in the same order. A runtime that chose the
    order freely could match different messages with each other. Symmetric matrices are sent as their upper triangles.

    Args:
        shapes: of the tensors.
        symmetric: for each tensor, True if its last two axes are symmetric matrices.
        limit: number of float32 values up to which tensors share a message.
        group: name of the communication group; None for all ranks.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], symmetric: Sequence[bool], limit: int, group: str | None):
        super().__init__(auto_prefix=False)
        self.shapes = tuple(shapes)
        # for each tensor, b if it is a stack of symmetric b x b matrices that are sent as triangles, else 0
        self.sizes = tuple(
            s[-1] if is_symmetric and s[-1] > 1 else 0 for s, is_symmetric in zip(shapes, symmetric, strict=True)
        )
        indices = sorted({size for size in self.sizes if size})
        self.kind = tuple(indices.index(size) if size else -1 for size in self.sizes)
        self.pack = tuple(Tensor(triangle(size)[0]) for size in indices)
        self.unpack = tuple(Tensor(triangle(size)[1]) for size in indices)
        self.lengths = tuple(
            int(np.prod(shape)) if not size else int(np.prod(shape[:-2])) * size * (size + 1) // 2
            for shape, size in zip(self.shapes, self.sizes, strict=True)
        )
        self.members = tuple(tuple(range(first, last)) for first, last in runs(self.lengths, limit))
        # position of each tensor in its message
        self.offsets = tuple(sum(self.lengths[run[0] : index]) for run in self.members for index in run)
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, group) if group else ops.AllReduce(ops.ReduceOp.SUM)

    @property
    def bytes(self) -> int:
        """Bytes that one call puts into messages."""
        return 4 * sum(self.lengths)

    def construct(self, values, weight, before):
        """The sums over the ranks of ``weight`` * value, in float32, for a tuple of values and this rank's weight.

        The messages are sent after ``before`` is computed, which all earlier messages have to be part of.
        """
        sums = ()
        for run in self.members:
            buffer = ops.cat(over(ops.partial(self._flattened, values), run))
            buffer = self.all_reduce(ops.depend(buffer * weight, before))
            before = buffer
            sums += over(ops.partial(self._unflattened, buffer), run)
        return sums

    def _flattened(self, values, index):
        value = values[index].astype(ms.float32)
        kind, size = self.kind[index], self.sizes[index]
        if kind >= 0:
            value = ops.gather(value.reshape(-1, size * size), self.pack[kind], 1)
        return value.reshape(-1)

    def _unflattened(self, buffer, index):
        kind, size = self.kind[index], self.sizes[index]
        flat = entries_of(buffer, self.offsets[index], self.lengths[index])
        if kind >= 0:
            flat = ops.gather(flat.reshape(-1, size * (size + 1) // 2), self.unpack[kind], 1)
        return flat.reshape(self.shapes[index])


class Means(nn.Cell):
    """Means of a loss and of tensors over all ranks, weighted by each rank's number of examples.

    Args:
        shapes: of the tensors.
        symmetric: for each tensor, True if its last two axes are symmetric matrices.
        limit: number of float32 values up to which tensors share a message.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], symmetric: Sequence[bool], limit: int):
        super().__init__(auto_prefix=False)
        self.sums = Sums([(2,), *shapes], [False, *symmetric], limit, None)
        self.indices = tuple(range(len(shapes)))

    def construct(self, loss, values, examples):
        """(mean loss, means of ``values``), each in its own type; ``examples`` is this rank's number of examples."""
        head = ops.stack((loss.astype(ms.float32), ops.ones_like(loss).astype(ms.float32)))
        sums = self.sums((head,) + values, examples, head)
        share = 1.0 / sums[0][1]
        means = over(ops.partial(self._mean, sums, share, values), self.indices)
        return (sums[0][0] * share).astype(loss.dtype), means

    def _mean(self, sums, share, values, index):
        return (sums[index + 1] * share).astype(values[index].dtype)


def unreduced(loss, values, examples):
    """The loss and the tensors of a single process, where no mean has to be taken."""
    return loss, values
