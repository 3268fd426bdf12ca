"""The position of a run: the .json description of a checkpoint, with a checksum over description and tensors.

The checksum detects damage such as a flipped bit in a tensor, which changes neither size nor names.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from thor.runtime.errors import UserError
from thor.runtime.json_files import parse

CHUNK = 1 << 20
BYTES, CHECKSUM = "bytes", "crc32"
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a run has got.

    Attributes:
        step: Steps done since the start.
        epoch: Epochs completed.
        step_in_epoch: Steps done in the epoch under way.
        steps_per_epoch: Steps of each epoch; 0 in checkpoints of earlier versions.
        seconds: Training time so far.
        seed: Seed of the run.
        loss_sum: Sum of the finite losses of the epoch under way.
        not_finite: Number of losses of the epoch under way that are not finite.
        evaluated: Step after which the network was last evaluated.
        best: Best value of the metric so far.
        best_step: Step of the best value.
        phases: Number of steps and seconds in each phase of the run.
        peak: Peak memory of the run's processes so far, in bytes.
    """

    step: Count = 0
    epoch: Count = 0
    step_in_epoch: Count = 0
    steps_per_epoch: Count = 0
    seconds: float = 0.0
    seed: int = 0
    loss_sum: float = 0.0
    not_finite: Count = 0
    evaluated: Count = 0
    best: float | None = None
    best_step: Count = 0
    phases: dict[str, list[float]] = field(default_factory=dict)
    peak: Count = 0


def describe(position: Position, tensors: Path) -> dict[str, Any]:
    """The description of a checkpoint: the position, and size and checksum of the tensor file."""
    plain = {**asdict(position), BYTES: tensors.stat().st_size}
    return {**plain, CHECKSUM: _checksum(tensors, plain)}


def read_position(tensors: Path, description: Path) -> Position:
    """Read a checkpoint's position; UserError if either of its two files is missing or damaged."""
    try:
        text = description.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{description} is missing (all hosts of a job need the same folder)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(description, f"cannot be read: {error}", tensors) from None
    try:
        values = parse(text)
    except ValueError as error:
        raise _damaged(description, f"not JSON: {error}", tensors) from None
    if not isinstance(values, dict):
        raise _damaged(description, "holds no description of a checkpoint", tensors)
    stored = values.pop(CHECKSUM, None)
    if not tensors.is_file():
        raise UserError(f"{tensors} is missing (all hosts of a job need the same folder)")
    size = tensors.stat().st_size
    if values.get(BYTES) != size:
        raise _damaged(tensors, f"{size} bytes, and should have {values.get(BYTES)}", tensors)
    if stored != _checksum(tensors, values):
        raise _damaged(tensors, f"its checksum and that in {description.name} differ", tensors)
    del values[BYTES]
    return _position(values, tensors, description)


def _position(values: dict[str, Any], tensors: Path, description: Path) -> Position:
    """Build a position from plain values, and validate each: the checksum is no guarantee that the run wrote them."""
    known = {each.name for each in fields(Position)}
    if values.keys() - known or "step" not in values:
        wrong = sorted(values.keys() - known) or ["no step"]
        raise _damaged(description, f"holds what no checkpoint has: {', '.join(wrong)}", tensors)
    try:
        return TypeAdapter(Position).validate_python(values)
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise _damaged(description, f"{place} = {detail['input']!r}: {detail['msg']}", tensors) from None


def _checksum(tensors: Path, values: dict[str, Any]) -> int:
    """CRC-32 of the tensor file followed by the description's values, sorted by key."""
    found = 0
    with tensors.open("rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return zlib.crc32(json.dumps(values, sort_keys=True).encode(), found)


def _damaged(path: Path, why: str, tensors: Path) -> UserError:
    """The error for a damaged checkpoint, with advice: usually an earlier checkpoint is intact."""
    if tensors.stem.startswith("step-"):
        return UserError(f"{path}: damaged ({why}); remove it to use the checkpoint before")
    return UserError(f"{path}: damaged ({why}); give another checkpoint, such as a step-*.ckpt beside it")
