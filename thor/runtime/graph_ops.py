"""Operations that MindSpore compiles quickly, in place of Python idioms that it compiles slowly.

The compiler copies a tuple that grows by ``+=`` at every turn of the loop, takes even longer for a comprehension, and
interprets the Python source of ``ops.split`` with sizes at every use (docs/dev/performance-log.md).
"""

from __future__ import annotations

import functools
import time
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

#: ``over(function, tuple, ...)`` is the tuple of results. ``ops.partial`` binds further arguments, which come first.
over = ops.Map()
_cast, _product, _slice = ops.Cast(), ops.MatMul(), ops.Slice()
_gather = ops.Gather()
#: ``reshaped(x, shape)``: the operator itself, which compiles faster than ``x.reshape``.
reshaped = ops.Reshape()
zeros_of, ones_of = ops.ZerosLike(), ops.OnesLike()
#: ``after(x, values)``: x, computed after the values.
after = ops.Depend()


@functools.cache
def shared(make: Any, *settings: Any) -> Any:
    """The Cell ``make(*settings)``, which has no Parameters: one object for all calls with equal settings.

    Sharing shortens compilation: MindSpore parses, infers and differentiates a Cell's functions once per object.
    """
    return make(*settings)


def scaled(factor: Any, values: Any) -> Any:
    """Each entry of a tuple times a number or a 0-d Tensor, in the entry's own dtype."""
    return over(ops.partial(ops.mul, factor), values)


def swapped(x: Any, outer: int, first: int, second: int, each: int) -> Any:
    """Swap two axes: x, read as [outer, first, second, each], becomes [outer, second, first, each].

    The rows are gathered, because MindSpore's Transpose on a CPU is slower and keeps an index of every *entry*, larger
    than the tensor itself, for as long as its graph lives (docs/dev/performance-log.md).
    """
    order = _order_of_rows(outer, first, second)
    return reshaped(_gather(reshaped(x, (-1, each)), order, 0), (outer, second, first, each))


@ops.constexpr
def is_at_least(value: float, bound: float) -> int:
    """1 if value >= bound, else 0, found at compile time: ``(f, g)[is_at_least(v, b)](x)`` is a choice, no branch."""
    return int(value >= bound)


@ops.constexpr
def constant(shape: tuple[int, ...], value: float) -> Tensor:
    """A float32 Tensor filled with one number, made at compile time: ``ops.full`` is interpreted at every use."""
    return Tensor(np.full(shape, value, np.float32))


@ops.constexpr
def constants(shape: tuple[int, ...], values: tuple[float, ...], axis: int) -> Tensor:
    """As :func:`constant`, with several numbers along an axis."""
    along = np.array(values, np.float32).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return Tensor(np.broadcast_to(along, shape).copy())


@ops.constexpr
def _order_of_rows(outer: int, first: int, second: int) -> Tensor:
    rows = np.arange(outer * first * second, dtype=np.int32).reshape(outer, first, second)
    return Tensor(rows.transpose(0, 2, 1).reshape(-1))


def entries_of(x: Any, first: int, count: int) -> Any:
    """The entries x[first : first + count] of a vector."""
    return _slice(x, (first,), (count,))


def itself(x, _):
    """x, where a choice at compile time may leave it as it is."""
    return x


def first_entries(x, shape):
    """The first entries of x along every axis."""
    return _slice(x, (0,) * x.ndim, shape)


def entry(values, index):
    """Entry ``index`` of a tuple."""
    return values[index]


def nested_entry(values, pair):
    """The entry ``(first, second)`` of a tuple of tuples."""
    return values[pair[0]][pair[1]]


def times(factor, value):
    """Value times factor in the value's dtype, multiplied in float32: in float16 a factor of 2^-25 would be zero."""
    if value.dtype == ms.float16 or value.dtype == ms.bfloat16:
        return _cast(_cast(value, ms.float32) * factor, value.dtype)
    return value * factor.astype(value.dtype)


def dot(x, y):
    """The inner product <x, y> over all entries, in float32."""
    x, y = reshaped(_cast(x, ms.float32), (1, -1)), reshaped(_cast(y, ms.float32), (-1, 1))
    return reshaped(_product(x, y), ())


def forget_compiled_construct(optimizer: nn.Optimizer) -> None:
    """Let MindSpore compile the ``construct`` of an optimizer anew where the step around it is not compiled.

    In PyNative, MindSpore compiles it by itself and looks the graph up by the Cell's time of creation; the graph goes
    on reading storage that a Parameter no longer has.
    """
    optimizer._create_time = time.time_ns()
