"""Agreement of the ranks of a data-parallel job on their settings and weights."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from mindspore import Parameter

from thor.distributed.ranks import Ranks

#: By how much sums over a Parameter may differ between processors that round differently, relative to their size.
ROUNDING = 1e-6


def same_everywhere(ranks: Ranks, values: dict[str, Any]) -> None:
    """Raise if a rank has other settings than rank 0: their collectives would not fit each other."""
    own = np.array([zlib.crc32(repr(v).encode()) % 2**20 for v in values.values()], np.float32)
    first = ranks.of_first(own)
    wrong = [name for name, one, other in zip(values, own, first, strict=True) if one != other]
    # all ranks must raise, or the others wait for this one
    if ranks.total(np.array([len(wrong)], np.float32))[0]:
        found = ", ".join(f"{name}={values[name]!r}" for name in wrong) or "another rank's"
        raise ValueError(f"rank {ranks.rank}: settings must be the same on every rank, but differ from rank 0: {found}")


def same_values(ranks: Ranks, parameters: Iterable[Parameter]) -> None:
    """Raise if Parameters have other values than on rank 0, as after ranks have loaded different checkpoints."""
    compared = [(p.name, p.asnumpy().astype(np.float64)) for p in parameters if p.dtype.is_floating_point]
    sums = np.array([[value.sum(), np.abs(value).sum()] for _, value in compared])
    first = ranks.of_first(sums.ravel().astype(np.float32)).reshape(sums.shape)
    apart = np.abs(sums - first).max(1) > ROUNDING * np.maximum(sums[:, 1], first[:, 1])
    if ranks.total(np.array([apart.sum()], np.float32))[0]:
        names = [name for (name, _), other in zip(compared, apart, strict=True) if other]
        found = f"{names[0]} and {len(names) - 1} more" if names else "another rank's"
        raise ValueError(
            f"rank {ranks.rank}: values that were loaded must be the same on every rank, but differ from rank 0: "
            f"{found}; load one checkpoint on all ranks"
        )
