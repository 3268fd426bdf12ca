"""Tensors of one shape as one tensor, so that an operation on all of them takes one kernel."""

from __future__ import annotations

from mindspore import nn, ops

_concat = ops.Concat(0)


class Stack(nn.Cell):
    """So many tensors of one shape, one behind the other along their first axis; a single one stays as it is."""

    def __init__(self, count: int):
        super().__init__(auto_prefix=False)
        self.count, self.split = count, ops.Split(0, count)

    def joined(self, parts):
        """The tensors as one."""
        return _concat(parts) if self.count > 1 else parts[0]

    def apart(self, x):
        """The tensors that a stack was made of."""
        return self.split(x) if self.count > 1 else (x,)
