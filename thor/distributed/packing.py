"""How tensors are packed for a message: triangles of symmetric blocks, many tensors in one buffer (pure NumPy)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np


@cache
def triangle(size: int) -> tuple[np.ndarray, np.ndarray]:
    """``(pack, unpack)`` for a symmetric b x b matrix: flat positions of its b (b + 1) / 2 upper entries, and back.

    ``flat[pack]`` is the triangle, ``triangle[unpack]`` the flat matrix, exactly symmetric.
    """
    rows, columns = np.triu_indices(size)
    position = np.zeros((size, size), np.int32)
    position[rows, columns] = position[columns, rows] = np.arange(len(rows), dtype=np.int32)
    return (rows * size + columns).astype(np.int32), position.reshape(-1)


def packed(blocks: np.ndarray) -> np.ndarray:
    """Symmetric blocks [m, b, b] as one flat vector of their triangles."""
    count, size, _ = blocks.shape
    return blocks.reshape(count, -1)[:, triangle(size)[0]].reshape(-1)


def unpacked(flat: np.ndarray, size: int) -> np.ndarray:
    """Blocks [m, b, b] out of :func:`packed`."""
    return flat.reshape(-1, size * (size + 1) // 2)[:, triangle(size)[1]].reshape(-1, size, size)


def packed_length(count: int, size: int) -> int:
    """Numbers in :func:`packed` of so many blocks."""
    return count * size * (size + 1) // 2


def runs(lengths: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """``(first, last)`` of consecutive tensors that travel together: at most ``limit`` numbers, or one tensor."""
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
