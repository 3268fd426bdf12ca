"""The cut of a Kronecker factor into diagonal blocks (pure: no tensors).

A factor of dimension ``dim`` is cut into ``count`` blocks of one ``size``, at most ``block_size``. The last block is
padded with zeros; damping turns the padding into a multiple of the identity, so that the inverse of a padded block
contains the inverse of the block without padding. Blocks are even: 785 rows at 128 become 7 blocks of 120, not 6 of 128
and one of 17. That is the number of blocks in the paper's cut, with less padding. Where equal blocks need no padding
(1000 rows at 128: 8 of 125), their size is not rounded up.

Plain blocks lose the strong direction that all blocks share. The two other splits keep it as the outer product of a
scaled mean, or as a low-rank part:

    "block"       A ~ D                       the paper's split
    "block+mean"  A ~ D + u u^T               u: the scaled mean of A's rows, D: blocks of A - u u^T
    "block+rank"  A ~ D + Z W^-1 Z^T          Z = A Q, W = Q^T A Q for a tracked subspace Q (Nystroem)

The coordinate of a bias is the constant 1, so that A - u u^T is zero in the bias's row and column. "block+mean"
therefore cuts only the inputs and keeps the bias as a separate entry of u: 784 inputs with a bias are 7 blocks of 112
without padding, and 128 inputs with a bias are one block of 128, which is exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from first_order.checks import check_int

SPLITS = ("block", "block+mean", "block+rank")
#: Order of a convolution's input coordinates before the cut: it decides which coordinates share a block.
ORDERS = ("channel", "position")
#: An inverse of few blocks is kept as one matrix where that adds at most so many operations to a plain step. Blocks and
#: thin products need about ten kernels more, which cost a CPU as much time as these operations.
WHOLE_INVERSE_OPERATIONS = 40_000_000
WHOLE_INVERSE_BLOCKS = 4
_ALIGN = 8  # padded sizes are rounded up to a multiple of this, which suits vector and matrix units
_ALIGN_FROM = 32  # smaller sizes are not rounded: the padding would cost too much


@dataclass(frozen=True)
class Cut:
    """The layout of one factor's blocks: ``count`` blocks of ``size`` rows cover ``dim`` rows.

    ``rank`` is the number of columns of the scaled mean or low-rank part, 0 for plain blocks. With ``bias_apart`` the
    blocks cover all rows but the last, the bias's. With ``whole_inverse`` the same inverse is cached as one matrix.
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
        """Rows of all blocks, padding included."""
        return self.size * self.count

    @property
    def thin(self) -> int:
        """Rows of the scaled mean or low-rank part: those of the blocks, and one for a separate bias."""
        return self.padded + self.bias_apart

    def estimate_shapes(self, copies: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of an estimate of ``copies`` copies: blocks, beside, probe, uses (thor/curvature/factor.py)."""
        thin = (copies, self.thin, self.rank) if self.rank else (1,)
        return (copies, self.count, self.size, self.size), thin, thin, (1,)

    def cache_shapes(self, copies: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of a damped inverse of ``copies`` copies: D^-1, s, t, and a bias's part (thor/curvature/factor.py)."""
        if self.whole_inverse:
            return (copies, 1, self.dim, self.dim), (1,), (1,)
        inverse = (copies, self.count, self.size, self.size)
        if not self.rank:
            return inverse, (1,), (1,)
        rows = self.rank + self.bias_apart
        bias = ((copies, rows, 1),) if self.bias_apart else ()
        return inverse, (copies, self.padded, self.rank), (copies, rows, self.padded), *bias

    def basis_shapes(self, copies: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of the eigenbases of ``copies`` copies: none for blocks of one row, which are their own."""
        return ((copies, self.count, self.size, self.size),) if self.size > 1 else ()

    @property
    def kept(self) -> list[int]:
        """Indices of the :attr:`thin` rows that are rows of the factor, not padding."""
        inside = range(self.dim - self.bias_apart)
        return [*inside, self.padded] if self.bias_apart else [*inside]


def even_cut(dim: int, block_size: int) -> tuple[int, int]:
    """``(size, count)`` of the most even cut of ``dim`` rows into the fewest blocks of at most ``block_size`` rows."""
    count = -(-dim // block_size)
    size = -(-dim // count)
    if size * count > dim and size >= _ALIGN_FROM:
        size = min(block_size, -(-size // _ALIGN) * _ALIGN)
    return size, count


def numbers_in(shapes: Iterable[tuple[int, ...]]) -> int:
    """Total number of entries of tensors with these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def diagonal_cut(dim: int) -> Cut:
    """The cut of a diagonal factor: blocks of one row."""
    return Cut(dim, 1, dim)


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """The block size and the split of every factor.

    Args:
        block_size: the largest block of any factor.
        split: ``"block"``, ``"block+mean"`` or ``"block+rank"`` (see the module's docstring).
        rank: directions in the low-rank part of ``"block+rank"``. More directions approximate the factor better; each
            costs two thin products per gradient.
        layers: exceptions, ``{regular expression on the layer's name: block size}``, or a pair of block sizes for
            A and G; the first match wins.
        order: order of a convolution's input coordinates. With ``"channel"`` a block holds all kernel positions of some
            channels, with ``"position"`` some kernel positions of all channels. It matters only where a factor is cut.
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
        """The largest block of a layer's factor; ``side`` is "a" or "g"."""
        sizes = next((s for pattern, s in self.layers.items() if re.search(pattern, layer)), self.block_size)
        return sizes["ag".index(side)] if isinstance(sizes, tuple) else sizes

    def cut(self, dim: int, layer: str = "", side: str = "a", *, bias: bool = False, across: int = 0) -> Cut:
        """The cut of a factor of ``dim`` rows in ``layer``. A factor that fits in one block is not cut, and is exact.

        ``bias`` says that the last row is a bias's. ``across`` is the number of gradient entries per row of the factor:
        the rows of the layer's other factor times its groups. It decides whether the inverse is kept as one matrix;
        with 0 it never is.
        """
        cut = self._cut(dim, layer, side, bias)
        operations = 2 * across * dim * (dim - cut.size)  # more than with blocks, in a product with one matrix
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
        """One line for logs and error messages."""
        rank = f", rank={self.rank}" if self.split == "block+rank" else ""
        extra = f", {len(self.layers)} exceptions" if self.layers else ""
        order = "" if self.order == "channel" else f", order={self.order!r}"
        return f"block_size={self.block_size}, split={self.split!r}{rank}{order}{extra}"
