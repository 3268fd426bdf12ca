"""Checkpoints of a run: all tensors, and where the run stands; the last two are kept.

Each is a pair `step-N.ckpt` and `step-N.json`. Both are written under temporary names; the .json is renamed last, and a
checkpoint without it does not count. So a run that is killed at any moment leaves its newest complete checkpoint.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import mindspore as ms
from mindspore import Parameter, nn

from scripts.errors import UserError

KEEP = 2
CHECKPOINT_SUFFIXES = (".ckpt", ".json")


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands.

    Attributes:
        step: Steps done since the start.
        epoch: Epochs completed.
        step_in_epoch: Steps done in the epoch under way.
        seconds: Training time so far.
        seed: Seed of the run.
        loss_sum: Sum of the losses of the epoch under way.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    seconds: float = 0.0
    seed: int = 0
    loss_sum: float = 0.0


def save(folder: Path, network: nn.Cell, optimizer: nn.Cell, position: Position) -> None:
    """Write a checkpoint, then remove all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step-{position.step:08d}"
    tensors = [{"name": key, "data": value} for key, value in _parameters(network, optimizer).items()]
    temporary = folder / "writing.ckpt"
    ms.save_checkpoint(tensors, str(temporary))
    description = {**asdict(position), "bytes": temporary.stat().st_size}
    os.replace(temporary, folder / f"{name}.ckpt")
    temporary = folder / "writing.json"
    temporary.write_text(json.dumps(description, indent=1))
    os.replace(temporary, folder / f"{name}.json")
    for old in _complete(folder)[:-KEEP]:
        old.unlink()
        old.with_suffix(".ckpt").unlink(missing_ok=True)


def load_last(folder: Path, network: nn.Cell, optimizer: nn.Cell) -> Position:
    """Bring network and optimizer to the newest checkpoint; where the run stands there."""
    complete = _complete(folder)
    if not complete:
        raise UserError(f"nothing to resume: {folder} has no checkpoint (step-*.json with its step-*.ckpt)")
    description = json.loads(complete[-1].read_text())
    path = complete[-1].with_suffix(".ckpt")
    if not path.is_file():
        raise UserError(f"nothing to resume: {path} is missing")
    size = description.pop("bytes")
    if path.stat().st_size != size:
        raise UserError(f"{path}: {path.stat().st_size} bytes, and should have {size}; remove it to use the one before")
    _load(path, network, optimizer)
    return Position(**description)


def clear(folder: Path) -> None:
    """Remove the checkpoints of an earlier run."""
    for path in (*folder.glob("step-*.json"), *folder.glob("step-*.ckpt"), *folder.glob("writing.*")):
        path.unlink()


def _complete(folder: Path) -> list[Path]:
    """The .json files of complete checkpoints, oldest first."""
    return sorted(folder.glob("step-*.json"))


def _parameters(network: nn.Cell, optimizer: nn.Cell) -> dict[str, Parameter]:
    """Parameters of both by name; weights that both have count once."""
    found: dict[str, Parameter] = {}
    for cell in (network, optimizer):
        for parameter in cell.get_parameters():
            if found.setdefault(parameter.name, parameter) is not parameter:
                raise RuntimeError(f"two parameters are called {parameter.name}")
    return found


def _load(path: Path, network: nn.Cell, optimizer: nn.Cell) -> None:
    """Load all tensors; nothing may be missing."""
    try:
        tensors = ms.load_checkpoint(str(path))
        missing: set[str] = set()
        for cell in (optimizer, network):
            missing |= set(ms.load_param_into_net(cell, tensors)[0])
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    if missing:
        raise UserError(f"{path}: belongs to another network or optimizer, it lacks {', '.join(sorted(missing))}")
