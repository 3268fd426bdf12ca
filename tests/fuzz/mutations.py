"""Damage to files, of bytes and of nested values: pure functions of a seeded generator and what they damage."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**70, -(2**70), 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf, "", "x", "0", "../x",
    "\x00", "\u2028", "x" * 5000, [], {}, [None], [[]], [1, [2, [3, {}]]], {"": None}, {"x": {"y": []}},
)  # fmt: skip

#: What breaks parsers: depth, long numbers, byte order marks, dates that are none, a mapping as a key. No deeper, since
#: PyYAML's time grows with the square: 2,000 brackets take it ten seconds and more.
PIECES = (b"[" * 1_200, b'{"x":' * 1_200, b"9" * 5_000, b"\xef\xbb\xbf", b"\x00", b"1e999", b"2001-99-99", b"{[]: 0}")

Step = tuple[Any, Any]  # a container, and a key or index in it


def damaged_bytes(random: Random, data: bytes) -> bytes:
    """One to three faults as disks, copies and editors make them."""
    for _ in range(random.randint(1, 3)):
        data = random.choice(BYTE_FAULTS)(random, data)
    return data


def damaged_value(random: Random, value: Any) -> Any:
    """A copy with one to three faults as people and other programs make them."""
    value = copy.deepcopy(value)
    for _ in range(random.randint(1, 3)):
        places = list(_places(value))
        if not places:
            return junk(random)
        random.choice(VALUE_FAULTS)(random, *random.choice(places))
    return value


def junk(random: Random) -> Any:
    """A value that hardly any place is made for."""
    return copy.deepcopy(random.choice(JUNK))


def _flip(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data)) if data else 0
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :] if data else data


def _delete(random: Random, data: bytes) -> bytes:
    start, end = _chunk(random, data)
    return data[:start] + data[end:]


def _insert(random: Random, data: bytes) -> bytes:
    at = random.randint(0, len(data))
    piece = random.choice(PIECES) if random.random() < 0.5 else random.randbytes(random.randint(1, 16))
    return data[:at] + piece + data[at:]


def _duplicate(random: Random, data: bytes) -> bytes:
    start, end = _chunk(random, data)
    return data[:end] + data[start:end] + data[end:]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randint(0, len(data))]


def _zero(random: Random, data: bytes) -> bytes:
    """What a file system leaves of a file whose blocks never reached the disk."""
    start, end = _chunk(random, data)
    return data[:start] + bytes(end - start) + data[end:]


def _chunk(random: Random, data: bytes) -> tuple[int, int]:
    """Ends of a piece, more often a short one."""
    start = random.randint(0, len(data))
    return start, min(len(data), start + int(len(data) ** random.random()))


def _replace(random: Random, holder: Any, key: Any) -> None:
    holder[key] = junk(random)


def _remove(random: Random, holder: Any, key: Any) -> None:
    del holder[key]


def _add(random: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[random.choice(("x", "", f"{key}x", "base"))] = junk(random)
    else:
        holder.insert(key, junk(random))


def _swap_type(random: Random, holder: Any, key: Any) -> None:
    """The same in another type: a number as a text, a list as a mapping, one value as a list of it."""
    value = holder[key]
    kinds: tuple[Callable[[Any], Any], ...] = (str, lambda v: [v], lambda v: {"value": v})
    if isinstance(value, dict):
        kinds = (lambda v: list(v.items()), lambda v: list(v.values()), str)
    elif isinstance(value, (int, float)):
        kinds = (str, lambda v: -v, lambda v: v * 2**40, float, lambda v: [v])
    holder[key] = random.choice(kinds)(value)


def _places(value: Any) -> Iterator[Step]:
    """Every place in nested mappings and lists."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


BYTE_FAULTS = (_flip, _delete, _insert, _duplicate, _truncate, _zero)
VALUE_FAULTS = (_replace, _remove, _add, _swap_type)
