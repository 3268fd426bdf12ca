"""Reading and checking of a run's ``metrics.jsonl``, with the keys that each kind of line must have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thor.curvature.trace_rule import Decision
from thor.runtime.errors import UserError
from thor.runtime.json_files import parse

Line = dict[str, Any]
DECISIONS = tuple(decision.name for decision in Decision)
#: Metrics of the test set; a line with ``test_loss`` has at least one of them.
TEST_METRICS = ("test_accuracy", "test_error")
SCORES = ("test_loss", *TEST_METRICS, "test_top5")


def _is_number(value: Any) -> bool:
    """True for an int below 2^63 in size, and for any float: a diverged loss may be NaN or infinite."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float)


def _is_measure(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


def _is_count(value: Any) -> bool:
    return _is_measure(value) and isinstance(value, int)


Check = tuple[Callable[[Any], bool], str]
_COUNT: Check = (_is_count, "a whole number >= 0")
_MEASURE: Check = (_is_measure, "a finite number >= 0")
_NUMBER: Check = (_is_number, "a number")
_PLACE = {"step": _COUNT, "epoch": _MEASURE, "seconds": _MEASURE}
_NEEDED: dict[str, dict[str, Check]] = {
    "step": {**_PLACE, "loss": _NUMBER, "ms_per_step": _MEASURE},
    "eval": {**_PLACE, "test_loss": _NUMBER},
    "epoch": {**_PLACE, "train_loss": _NUMBER},
    "refresh": {
        "step": _COUNT,
        "layer": (lambda value: isinstance(value, str), "a text"),
        "trace": _NUMBER,
        "change": (lambda value: value is None or _is_number(value), "a number or null"),
        "decision": (lambda value: value in DECISIONS, f"one of {', '.join(DECISIONS)}"),
    },
    "ranks": {
        "step": _COUNT,
        "inverse_seconds": (
            lambda value: isinstance(value, list) and bool(value) and all(map(_is_measure, value)),
            "a list of finite numbers >= 0",
        ),
    },
}


def read_lines(path: Path) -> list[Line]:
    """All complete lines of the file; a last line without a newline is still being written and is left out.

    Raises:
        UserError: if the file cannot be read or a line is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    lines = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            lines.append(parse(line))
        except ValueError as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise UserError(f"{path}, line {number}: not JSON ({why}); correct or remove it") from None
    for number, found in enumerate(lines, start=1):
        wrong = _wrong_with(found)
        if wrong:
            raise UserError(f"{path}, line {number}: {wrong}; correct or remove the line")
    return lines


def _wrong_with(line: Any) -> str | None:
    """A description of the fault of a line; None if it has none."""
    kind = line.get("kind") if isinstance(line, dict) else None
    if not isinstance(kind, str) or kind not in _NEEDED:
        return f"kind = {kind!r}: must be one of {', '.join(_NEEDED)}"
    needed = {**_NEEDED[kind], **{key: _NUMBER for key in SCORES if key in line}}
    for key, (is_right, allowed) in needed.items():
        if key not in line:
            return f"{key} is missing"
        if not is_right(line[key]):
            return f"{key} = {line[key]!r}: must be {allowed}"
    if "test_loss" in line and not any(key in line for key in TEST_METRICS):
        return f"test_loss stands without any of {', '.join(TEST_METRICS)}"
    return None
