"""Idioms that MindSpore compiles quickly, in place of Python's that cost it up to 0.2 s at every use.

Measured with MindSpore 2.10 (docs/speed.md): a tuple grown by ``+=`` in a loop is copied in the compiler's graph at
each turn (17 to 25 ms an entry), a comprehension costs more (50 to 90), and of ``ops.split`` with sizes the compiler
interprets the Python (197 ms a use).
"""

from __future__ import annotations

import functools
import time
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

#: ``over(function, tuple, ...)`` is the tuple of results; what else a function needs, ``ops.partial`` gives it first.
over = ops.Map()
_cast, _product, _slice = ops.Cast(), ops.MatMul(), ops.Slice()
_gather = ops.Gather()
#: ``reshaped(x, shape)``: the operator, where ``x.reshape`` costs the compiler half as much again.
reshaped = ops.Reshape()


@functools.cache
def shared(make: Any, *settings: Any) -> Any:
    """``make(*settings)``, a Cell without Parameters: one object for all who ask with equal settings.

    MindSpore parses a Cell's functions, infers types through them and differentiates them once for each object.
    """
    return make(*settings)


def scaled(factor: Any, values: Any) -> Any:
    """Each of a tuple times a number or a 0-d Tensor, in its own type."""
    return over(ops.partial(ops.mul, factor), values)


def swapped(x: Any, outer: int, first: int, second: int, each: int) -> Any:
    """X [outer, first, second, each], shaped as it may be, as [outer, second, first, each].

    By a gather of its rows. MindSpore's Transpose on a CPU holds an 8-byte index of every single *entry* for as long as
    its graph lives, twice what the tensor takes itself, and is slower by half (docs/speed.md).
    """
    order = _order_of_rows(outer, first, second)
    return reshaped(_gather(reshaped(x, (-1, each)), order, 0), (outer, second, first, each))


@ops.constexpr
def constant(shape: tuple[int, ...], value: float) -> Tensor:
    """A float32 Tensor of one number, made while a graph is compiled: ``ops.full`` is interpreted at every use."""
    return Tensor(np.full(shape, value, np.float32))


@ops.constexpr
def constants(shape: tuple[int, ...], values: tuple[float, ...], axis: int) -> Tensor:
    """As :func:`constant`, of several numbers along an axis."""
    along = np.array(values, np.float32).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return Tensor(np.broadcast_to(along, shape).copy())


@ops.constexpr
def _order_of_rows(outer: int, first: int, second: int) -> Tensor:
    rows = np.arange(outer * first * second, dtype=np.int32).reshape(outer, first, second)
    return Tensor(rows.transpose(0, 2, 1).reshape(-1))


def entries_of(x: Any, first: int, count: int) -> Any:
    """x[first:first + count] of a vector."""
    return _slice(x, (first,), (count,))


def entry(values, index):
    """One of a tuple."""
    return values[index]


def of_pair(values, pair):
    """The entry ``(first, second)`` of a tuple of tuples."""
    return values[pair[0]][pair[1]]


def times(factor, value):
    """The value scaled, in its own type; multiplied in float32, for in float16 a factor of 2^-25 is none."""
    if value.dtype == ms.float16 or value.dtype == ms.bfloat16:
        return _cast(_cast(value, ms.float32) * factor, value.dtype)
    return value * factor.astype(value.dtype)


def dot(x, y):
    """<x, y> over all entries, float32."""
    x, y = reshaped(_cast(x, ms.float32), (1, -1)), reshaped(_cast(y, ms.float32), (-1, 1))
    return reshaped(_product(x, y), ())


def forget_compiled_construct(optimizer: nn.Optimizer) -> None:
    """Let MindSpore compile the ``construct`` of an optimizer anew where the step around it is not compiled.

    In PyNative, MindSpore compiles it by itself and looks the graph up by the Cell's time of creation; the graph goes
    on reading storage that a Parameter no longer has.
    """
    optimizer._create_time = time.time_ns()
