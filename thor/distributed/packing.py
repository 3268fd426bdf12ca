"""Packing of tensors for messages: triangles of symmetric blocks, and many tensors in one message (pure NumPy)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np


@cache
def triangle(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Index vectors ``(pack, unpack)`` between a symmetric b x b matrix and its b (b + 1) / 2 upper entries.

    With the matrix flattened to [b * b], ``flat[pack]`` is its upper triangle and ``triangle[unpack]`` the flat matrix
    again, exactly symmetric.
    """
    rows, columns = np.triu_indices(size)
    position = np.zeros((size, size), np.int32)
    position[rows, columns] = position[columns, rows] = np.arange(len(rows), dtype=np.int32)
    return (rows * size + columns).astype(np.int32), position.reshape(-1)


def packed(blocks: np.ndarray, symmetric: bool = True) -> np.ndarray:
    """Blocks [m, b, b] as one vector: of symmetric ones the upper triangles, [m b (b + 1) / 2]."""
    count, size, _ = blocks.shape
    flat = blocks.reshape(count, -1)
    return (flat[:, triangle(size)[0]] if symmetric else flat).reshape(-1)


def unpacked(flat: np.ndarray, size: int, symmetric: bool = True) -> np.ndarray:
    """The blocks [m, b, b] of a vector from :func:`packed`; ``size`` is b."""
    if symmetric:
        flat = flat.reshape(-1, size * (size + 1) // 2)[:, triangle(size)[1]]
    return flat.reshape(-1, size, size)


def packed_length(count: int, size: int, symmetric: bool = True) -> int:
    """The length of :func:`packed` for ``count`` blocks of ``size`` rows."""
    return count * (size * (size + 1) // 2 if symmetric else size * size)


def runs(lengths: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Groups of consecutive tensors that share a message.

    Args:
        lengths: numbers in each tensor.
        limit: numbers in one message; a single tensor that is longer gets a message of its own.

    Returns:
        For each message ``(first, last)``: it holds the tensors ``first`` to ``last - 1``.
    """
    found: list[tuple[int, int]] = []
    first, room = 0, limit
    for index, length in enumerate(lengths):
        if index > first and length > room:
            found.append((first, index))
            first, room = index, limit
        room -= length
    if lengths:
        found.append((first, len(lengths)))
    return found
