"""Agreement of the ranks of a data-parallel job on their settings."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from thor.distributed.ranks import Ranks


def same_everywhere(ranks: Ranks, values: dict[str, Any]) -> None:
    """Raise if a rank has other settings than rank 0: their collectives would not fit each other."""
    own = np.array([zlib.crc32(repr(v).encode()) % 2**20 for v in values.values()], np.float32)
    first = ranks.of_first(own)
    wrong = [name for name, one, other in zip(values, own, first, strict=True) if one != other]
    # all ranks must raise, or the others wait for this one
    if ranks.total(np.array([len(wrong)], np.float32))[0]:
        found = ", ".join(f"{name}={values[name]!r}" for name in wrong) or "another rank's"
        raise ValueError(f"rank {ranks.rank}: settings must be the same on every rank, but differ from rank 0: {found}")
