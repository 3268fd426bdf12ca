"""THOR's choice of the block size from two curves (pure).

    kept(n)         share of the factors whose spectral loss at block size n is below a threshold; rises with n
    performance(n)  p_1 / p_n, where p_n is the measured time to invert one block of size n; falls with n

The curves are interpolated linearly between candidates. The chosen block size is the candidate nearest to their
crossing. The paper's example, ResNet-50 on an Ascend 910, crosses at (106, 0.21) and takes 128 (THOR, AAAI 2021).

The paper leaves some cases open. They are settled as follows:

    several crossings             the leftmost: the smallest blocks at which the curves balance
    equal over an interval        the left end of the interval
    kept above everywhere         the smallest candidate: it keeps enough and is the fastest
    kept below everywhere         the largest candidate: no smaller one keeps enough
    two candidates equally near   the larger, which loses less
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from first_order.checks import check_int

LARGEST_CANDIDATE = 2048


@dataclass(frozen=True)
class Crossing:
    """The crossing of the curves and the chosen candidate. ``dim`` and ``share`` are None if they do not cross."""

    dim: float | None
    share: float | None
    chosen: int
    reason: str


def default_candidates(largest: int) -> list[int]:
    """Block sizes 1, 16, 32, ... until the largest factor fits one block, at most 2048 (as in the paper)."""
    check_int("largest", largest, 1)
    candidates = [1, 16]
    while candidates[-1] < min(largest, LARGEST_CANDIDATE):
        candidates.append(candidates[-1] * 2)
    return candidates


def check_candidates(values: Sequence[object]) -> list[int]:
    """The candidate block sizes, sorted and without duplicates. A ValueError or TypeError names an invalid one."""
    if not values:
        raise ValueError("dims must hold at least two block sizes, but it is empty")
    sizes = sorted({check_int("each of dims", value, 1) for value in values})
    if len(sizes) < 2:
        raise ValueError(f"dims must hold at least two block sizes, but got {sizes}")
    return sizes


def kept_shares(losses: Sequence[Sequence[float]], threshold: float) -> list[float]:
    """The share of factors with a loss below the threshold, per candidate; ``losses`` is [factors, candidates]."""
    if not losses:
        raise ValueError("there are no factors")
    return [sum(loss < threshold for loss in column) / len(losses) for column in zip(*losses, strict=True)]


def performances(seconds: Sequence[float]) -> list[float]:
    """p_1 / p_n per candidate, where p_1 is the time of the smallest candidate."""
    if any(not 0 < value < math.inf for value in seconds):
        raise ValueError(f"times must be positive and finite, but got {list(seconds)}")
    return [seconds[0] / value for value in seconds]


def choose(dims: Sequence[int], kept: Sequence[float], performance: Sequence[float]) -> Crossing:
    """Find the crossing of the two curves over ``dims`` (ascending) and the candidate nearest to it."""
    if not len(dims) == len(kept) == len(performance) or len(dims) < 2:
        raise ValueError(
            f"dims, kept and performance must have one length of at least 2, "
            f"but have {len(dims)}, {len(kept)} and {len(performance)}"
        )
    if any(a >= b for a, b in zip(dims, dims[1:], strict=False)):
        raise ValueError(f"dims must ascend, but are {list(dims)}")
    if not all(math.isfinite(value) for value in (*kept, *performance)):
        raise ValueError(f"kept and performance must be finite, but are {list(kept)} and {list(performance)}")
    above = [k - p for k, p in zip(kept, performance, strict=True)]
    if min(above) > 0:
        return Crossing(None, None, dims[0], "kept exceeds performance everywhere: the smallest loses little enough")
    if max(above) < 0:
        return Crossing(None, None, dims[-1], "performance exceeds kept everywhere: only the largest keeps enough")
    for i, value in enumerate(above):
        if value == 0:
            return _nearest(dims, float(dims[i]), kept[i])
        if (above[i + 1] > 0) is not (value > 0) and above[i + 1] != 0:
            break
    part = above[i] / (above[i] - above[i + 1])
    where = dims[i] + part * (dims[i + 1] - dims[i])
    return _nearest(dims, where, kept[i] + part * (kept[i + 1] - kept[i]))


def _nearest(dims: Sequence[int], where: float, share: float) -> Crossing:
    nearest = min(abs(dim - where) for dim in dims)
    chosen = max(dim for dim in dims if abs(dim - where) <= nearest * (1 + 1e-9))  # a tie up to rounding
    return Crossing(where, share, chosen, "the candidate nearest to the crossing")


def read_curves(path: str | Path) -> tuple[list[int], list[float], list[float]]:
    """(dims, kept, performance) from a CSV file with the columns dim, kept and time (or performance)."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            reader = csv.DictReader(file, skipinitialspace=True)
            rows, columns = list(reader), set(reader.fieldnames or ())
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    timed = "time" in columns
    if not {"dim", "kept"} <= columns or not (timed or "performance" in columns):
        raise ValueError(f"{path}: needs a header with the columns dim, kept and time (or performance)")
    points: list[tuple[int, float, float]] = []
    for number, row in enumerate(rows, 2):
        try:
            points.append((int(row["dim"]), float(row["kept"]), float(row["time" if timed else "performance"])))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: needs an integer and two numbers: {error}") from error
    points.sort()
    if len(points) < 2:
        raise ValueError(f"{path}: needs at least two block sizes, a line each, but has {len(points)}")
    dims, kept, last = (list(column) for column in zip(*points, strict=True))
    for dim in dims:
        check_int(f"{path}: dim", dim, 1)
    twice = [dim for dim, following in zip(dims, dims[1:], strict=False) if dim == following]
    if twice:
        raise ValueError(f"{path}: dim {twice[0]} stands there twice")
    if any(not 0 <= value <= 1 for value in kept):
        raise ValueError(f"{path}: kept is a share and must lie between 0 and 1, but got {kept}")
    if any(not 0 < value < math.inf for value in last):
        raise ValueError(f"{path}: {'time' if timed else 'performance'} must be positive and finite, but got {last}")
    return dims, kept, performances(last) if timed else last
