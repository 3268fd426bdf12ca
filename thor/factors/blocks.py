"""How a Kronecker factor is cut into diagonal blocks (pure: no tensors).

A factor of dimension ``dim`` is cut into ``count`` blocks of one ``size`` (at most ``block_size``), the last padded:
with zeros while the factor is gathered, which damping turns into a multiple of the identity, so that a padded block's
inverse is the inverse of what it holds. Blocks are even (785 at 128 becomes 7 of 120, not 6 of 128 and one of 17): the
same number of blocks as the paper's cut, with less padding. A cut that needs none (1000 at 128: 8 of 125) stays exact.

What plain blocks lose is the strong direction that every block shares. The two other splits keep it beside the blocks:

    "block"       A ~ D                       the paper's split
    "block+mean"  A ~ D + u u^T               u: the mean of the rows that A sums, D: blocks of A - u u^T
    "block+rank"  A ~ D + Z W^-1 Z^T          Z = A Q, W = Q^T A Q for a tracked subspace Q (Nystroem)

A bias's coordinate is the constant 1, so A - u u^T is zero in its row and column: "block+mean" cuts the inputs alone
and keeps the bias *apart*, as one number beside the blocks. 784 inputs are 7 blocks of 112 without any padding, and 128
inputs in one block of 128 lose nothing at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from first_order.checks import check_int

SPLITS = ("block", "block+mean", "block+rank")
#: In which order a convolution's input coordinates stand before they are cut: which ones share a block.
ORDERS = ("channel", "position")
#: An inverse in blocks, with thin products beside them, costs a plain step some ten kernels more than one matrix, as
#: long as a CPU takes for so many operations: where that is all it would save, an inverse of few blocks is kept whole.
WHOLE_INVERSE_OPERATIONS = 40_000_000
WHOLE_INVERSE_BLOCKS = 4
_ALIGN = 8  # sizes are rounded up to this, where it costs little: vector units and cubes like it
_ALIGN_FROM = 32


@dataclass(frozen=True)
class Cut:
    """One factor's cut: ``count`` blocks of ``size`` rows cover ``dim`` rows; ``rank`` columns are kept beside them.

    With ``bias_apart`` the blocks cover all rows but the last, the bias's. With ``whole_inverse`` the inverse is kept
    as one matrix, multiplied out: it is the same inverse.
    """

    dim: int
    size: int
    count: int
    split: str = "block"
    rank: int = 0
    bias_apart: bool = False
    whole_inverse: bool = False

    @property
    def padded(self) -> int:
        """Rows that the blocks cover."""
        return self.size * self.count

    @property
    def thin(self) -> int:
        """Rows of what is kept beside the blocks: theirs, and the bias's where it stands apart."""
        return self.padded + self.bias_apart

    def estimate_shapes(self, copies: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of an estimate of so many copies: blocks, beside, probe, uses (thor/curvature/factor.py)."""
        thin = (copies, self.thin, self.rank) if self.rank else (1,)
        return (copies, self.count, self.size, self.size), thin, thin, (1,)

    def cache_shapes(self, copies: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of a damped inverse of so many copies: D^-1, s, t, and the bias's part (thor/curvature/factor.py)."""
        if self.whole_inverse:
            return (copies, 1, self.dim, self.dim), (1,), (1,)
        inverse = (copies, self.count, self.size, self.size)
        if not self.rank:
            return inverse, (1,), (1,)
        rows = self.rank + self.bias_apart
        bias = ((copies, rows, 1),) if self.bias_apart else ()
        return inverse, (copies, self.padded, self.rank), (copies, rows, self.padded), *bias

    @property
    def kept(self) -> list[int]:
        """Which of the :attr:`thin` rows are rows of the factor, and no padding."""
        inside = range(self.dim - self.bias_apart)
        return [*inside, self.padded] if self.bias_apart else [*inside]


def even_cut(dim: int, block_size: int) -> tuple[int, int]:
    """``(size, count)`` of the evenest cut of ``dim`` rows into as few blocks of at most ``block_size`` as possible."""
    count = -(-dim // block_size)
    size = -(-dim // count)
    if size * count > dim and size >= _ALIGN_FROM:
        size = min(block_size, -(-size // _ALIGN) * _ALIGN)
    return size, count


def numbers_in(shapes: Iterable[tuple[int, ...]]) -> int:
    """How many numbers tensors of these shapes hold."""
    return sum(math.prod(shape) for shape in shapes)


def diagonal_cut(dim: int) -> Cut:
    """A factor of which only the diagonal is kept: blocks of one."""
    return Cut(dim, 1, dim)


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """Which block size and which split every factor gets.

    Args:
        block_size: the largest block of any factor.
        split: ``"block"``, ``"block+mean"`` or ``"block+rank"`` (see the module's text).
        rank: directions kept beside the blocks by ``"block+rank"``; more follow the factor better and cost two thin
            products per gradient each.
        layers: exceptions, ``{regular expression on the layer's name: block size}``, or a pair of sizes for
            A and G; the first match wins.
        order: of a convolution's input coordinates. ``"channel"``: a block holds all kernel positions of some channels,
            ``"position"``: some positions of all channels. It matters only where a factor is cut.
    """

    block_size: int = 128
    split: str = "block+mean"
    rank: int = 16
    layers: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    order: str = "channel"

    def __post_init__(self) -> None:
        check_int("block_size", self.block_size, 1)
        check_int("rank", self.rank, 1)
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, but got {self.split!r}")
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, but got {self.order!r}")
        for pattern, sizes in self.layers.items():
            if isinstance(sizes, tuple) and len(sizes) != 2:
                raise ValueError(f"layers: {pattern!r} must give one block size or a pair for A and G, but got {sizes}")
            for size in sizes if isinstance(sizes, tuple) else (sizes,):
                check_int(f"block_size of layers matching {pattern!r}", size, 1)
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"layers: {pattern!r} is not a regular expression: {error}") from error

    def block_size_of(self, layer: str, side: str) -> int:
        """The largest block of a layer's factor, ``side`` being "a" or "g"."""
        sizes = next((s for pattern, s in self.layers.items() if re.search(pattern, layer)), self.block_size)
        return sizes["ag".index(side)] if isinstance(sizes, tuple) else sizes

    def cut(self, dim: int, layer: str = "", side: str = "a", *, bias: bool = False, across: int = 0) -> Cut:
        """The cut of a factor of ``dim`` rows in ``layer``. A factor that fits one block is kept whole, and exact.

        ``bias`` tells that the last row is a bias's; ``across``, how many numbers of a gradient meet each row of the
        factor: the rows of the layer's other one, times its groups. 0 keeps every inverse in blocks.
        """
        cut = self._cut(dim, layer, side, bias)
        operations = 2 * across * dim * (dim - cut.size)  # that a product with one matrix takes more
        few = cut.count <= WHOLE_INVERSE_BLOCKS and operations <= WHOLE_INVERSE_OPERATIONS
        return replace(cut, whole_inverse=True) if across and cut.rank and few else cut

    def _cut(self, dim: int, layer: str, side: str, bias: bool) -> Cut:
        block_size = self.block_size_of(layer, side)
        size, count = even_cut(dim, block_size)
        if count == 1 or self.split == "block":
            return Cut(dim, size, count)
        if self.split == "block+rank":
            return Cut(dim, size, count, self.split, min(self.rank, dim))
        if bias:
            return Cut(dim, *even_cut(dim - 1, block_size), self.split, 1, bias_apart=True)
        return Cut(dim, size, count, self.split, 1)

    def describe(self) -> str:
        """One line for logs and errors."""
        rank = f", rank={self.rank}" if self.split == "block+rank" else ""
        extra = f", {len(self.layers)} exceptions" if self.layers else ""
        order = "" if self.order == "channel" else f", order={self.order!r}"
        return f"block_size={self.block_size}, split={self.split!r}{rank}{order}{extra}"
