"""Checkpoints of a run: all tensors and the run's position. The newest few and the best one are kept.

A checkpoint is a pair `step-N.ckpt` and `step-N.json`. Both are written under temporary names; the .json is renamed
last, and a checkpoint without it is incomplete and ignored. A run that is killed at any moment, or whose disk is full,
therefore leaves its newest complete checkpoint. `best.ckpt` and `best.json` belong to the best evaluation so far.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from scripts.common.atomic_write import replace_durably, write_atomically
from scripts.common.errors import reporting_write_errors
from scripts.run_folder.progress_record import Position, describe, read_position
from thor import THOR
from thor.optimizer_state import StepCounts
from thor.runtime.errors import UserError

CHECKPOINT_SUFFIXES = (".ckpt", ".json")
BEST = "best"
AVERAGE_PREFIX = "ema."  # of the names of averaged weights


def save(folder: Path, tensors: list[dict[str, Any]], position: Position, keep: int) -> None:
    """Write a checkpoint with the result of `collect_tensors`, then remove all but the newest `keep`."""
    before = last_step(folder)
    saved = (
        "there is no earlier one" if before is None else f"that of step {before} is whole, and --resume goes on from it"
    )
    with _removing_partial_files(folder, f"the checkpoint of step {position.step} is not saved; {saved}"):
        _write_pair(folder, tensors, position)
    for old in complete(folder)[:-keep]:
        old.unlink()
        old.with_suffix(".ckpt").unlink(missing_ok=True)


def _write_pair(folder: Path, tensors: list[dict[str, Any]], position: Position) -> None:
    """Write tensors, best checkpoint and description, in this order: a run killed in between can be resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary, path = folder / "writing.ckpt", folder / f"{_name(position.step)}.ckpt"
    ms.save_checkpoint(tensors, str(temporary))
    description = describe(position, temporary)
    replace_durably(temporary, path)
    _write_description(path, description, position)


def update_description(folder: Path, position: Position) -> None:
    """Rewrite the newest checkpoint's description for a position that has changed while its tensors have not."""
    path = folder / f"{_name(position.step)}.ckpt"
    kept = f"what came after step {position.step} is not saved; its checkpoint is whole, and --resume goes on from it"
    with _removing_partial_files(folder, kept):
        _write_description(path, describe(position, path), position)


@contextmanager
def _removing_partial_files(folder: Path, lost: str) -> Iterator[None]:
    """Remove partially written files if the enclosed block fails: they take room that the disk may lack."""
    try:
        with reporting_write_errors(folder, lost):
            yield
    except BaseException:
        for path in folder.glob("writing.*"):
            path.unlink()
        raise


def _write_description(path: Path, description: dict[str, Any], position: Position) -> None:
    """Write a checkpoint's description, after the checkpoint has become the best one if the position says so."""
    if position.best_step == position.step and position.best is not None:
        _save_as_best(path, description)
    write_atomically(path.with_suffix(".json"), json.dumps(description, indent=1))


def last_step(folder: Path) -> int | None:
    """Step of the newest complete checkpoint; None if there is none."""
    found = complete(folder)
    return int(found[-1].stem.removeprefix("step-")) if found else None


def best_of(folder: Path) -> Path:
    """Path of the best checkpoint of a folder, which may not be there."""
    return folder / f"{BEST}.ckpt"


def position_at(folder: Path, step: int) -> Position:
    """The position of the checkpoint of a step."""
    path = folder / f"{_name(step)}.ckpt"
    return read_position(path, path.with_suffix(".json"))


def load(folder: Path, step: int, cells: tuple[nn.Cell, ...], steps_per_epoch: int) -> Position:
    """Load the checkpoint of a step into the cells and return its position.

    UserError if the epochs of the checkpoint's run had another number of steps.
    """
    path, position = folder / f"{_name(step)}.ckpt", position_at(folder, step)
    before = position.steps_per_epoch
    if not before and position.epoch:
        before = (position.step - position.step_in_epoch) // position.epoch
    if before not in (0, steps_per_epoch):
        raise UserError(
            f"{path}: an epoch of this run has {before} steps, and would have {steps_per_epoch} with "
            f"the data that data.folder holds now: give the data that it began with, or begin anew with --overwrite"
        )
    _load(path, cells)
    return replace(position, steps_per_epoch=steps_per_epoch)


def clear(folder: Path) -> None:
    """Remove all checkpoints, including partially written ones; the best one first, which none may outlive."""
    for pattern in (f"{BEST}.*", "step-*.json", "step-*.ckpt", "writing.*"):
        for path in folder.glob(pattern):
            path.unlink()


def complete(folder: Path) -> list[Path]:
    """The .json files of complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*.json") if path.with_suffix(".ckpt").is_file())


def _name(step: int) -> str:
    """File name of a step's checkpoint, without suffix."""
    return f"step-{step:08d}"


def choose(folder: Path, which: str) -> Path:
    """Path of the `best` or the `last` checkpoint in a folder of checkpoints."""
    last = complete(folder)
    path = best_of(folder) if which == BEST else last[-1].with_suffix(".ckpt") if last else folder / "step-*"
    if not path.is_file():
        hint = "no evaluation gave a number yet; --checkpoint last is there" if last else (
            f"is {folder.parent} the folder of a run?"
        )  # fmt: skip
        raise UserError(f"{path}: no such checkpoint; {hint}")
    return path


def check_description(path: Path) -> None:
    """Compare a checkpoint that a run has written with its description; UserError if one of the two is damaged.

    Other files of weights have none: what stands beside them under the same name is not looked at.
    """
    description = path.with_suffix(".json")
    if (path.stem == BEST or path.stem.startswith("step-")) and description.is_file():
        read_position(path, description)


def load_network(path: Path, network: nn.Cell) -> str:
    """Load a checkpoint's averaged weights, or its weights if it has no averages; returns which, for messages."""
    check_description(path)
    tensors = read_tensors(path)
    averages = {
        name.removeprefix(AVERAGE_PREFIX): value for name, value in tensors.items() if name.startswith(AVERAGE_PREFIX)
    }
    values = {**tensors, **{name: Parameter(Tensor(value), name=name) for name, value in averages.items()}}
    missing = [p.name for p in network.get_parameters() if p.name not in values]
    if missing:
        raise UserError(f"{path}: belongs to another network, it lacks {_first_names(missing)}")
    _load_into(path, network, values)
    return "averaged weights" if averages else "weights"


def _save_as_best(path: Path, description: dict[str, Any]) -> None:
    """Make a checkpoint the best one, by a hard link, or by a copy where the file system has no links.

    The old description is removed before the tensors are replaced: its checksum does not match the new tensors.
    """
    best, temporary = path.with_name(f"{BEST}.ckpt"), path.with_name("writing.best")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        shutil.copyfile(path, temporary)
    best.with_suffix(".json").unlink(missing_ok=True)
    replace_durably(temporary, best)
    write_atomically(best.with_suffix(".json"), json.dumps(description, indent=1))


def collect_tensors(cells: tuple[nn.Cell, ...]) -> list[dict[str, Any]]:
    """Names and data of the Parameters of all cells; a Parameter that several cells share is listed once.

    All ranks of a job must call this together: thor.THOR gathers the inverses that are held by other ranks.
    """
    found: dict[str, Parameter] = {}
    gathered: dict[str, Tensor] = {}
    for cell in cells:
        for parameter in cell.get_parameters():
            if found.setdefault(parameter.name, parameter) is not parameter:
                raise RuntimeError(f"two parameters are called {parameter.name}")
        if isinstance(cell, THOR):
            gathered |= {part["name"]: part["data"] for part in cell.state()}
    return [{"name": name, "data": gathered.get(name, parameter)} for name, parameter in found.items()]


def _load(path: Path, cells: tuple[nn.Cell, ...]) -> None:
    """Load a checkpoint into the cells; UserError if a Parameter is missing from it.

    Tables of learning rates keep their values: these follow from the settings, of which the number of epochs, and with
    it the length of a table, may have changed.
    """
    stored = read_tensors(path)
    tensors = _counts(stored, cells) | stored | {table.name: table for cell in cells for table in _rate_tables(cell)}
    missing: set[str] = set()
    for cell in cells[1:] + cells[:1]:  # optimizer first: thor.THOR refuses a wrong checkpoint before weights change
        missing |= set(_load_into(path, cell, tensors))
    if missing:
        raise UserError(f"{path}: belongs to another network or optimizer, it lacks {_first_names(sorted(missing))}")


def _counts(stored: dict[str, Parameter], cells: tuple[nn.Cell, ...]) -> dict[str, Parameter]:
    """Counts of steps and the loss scale for a checkpoint that a first-order optimizer of version 0.1.0 has left.

    They are the present ones of the cells, and a dynamic scale is the stored one.
    """
    own = [p for cell in cells if type(cell) is StepCounts for p in cell.get_parameters()]
    counts = {p.name: Parameter(Tensor(p.asnumpy().copy()), name=p.name) for p in own}
    for name, earlier in (("thor.loss_scale", "loss_scale.scale"), ("thor.good_steps", "loss_scale.good_steps")):
        if earlier in stored:
            counts[name] = Parameter(Tensor(stored[earlier].asnumpy().reshape(1)), name=name)
    return counts


def _rate_tables(cell: nn.Cell) -> list[Parameter]:
    """Copies of the learning rates that an optimizer, or the one inside thor.THOR, holds as a list."""
    optimizer = cell.inner if isinstance(cell, THOR) else cell
    if not isinstance(optimizer, nn.Optimizer) or not optimizer.dynamic_lr:
        return []
    return [Parameter(Tensor(p.asnumpy().copy()), name=p.name) for p in optimizer.learning_rate.get_parameters()]


def read_tensors(path: Path) -> dict[str, Parameter]:
    """Read the tensors of a file."""
    try:
        return dict(ms.load_checkpoint(str(path)))
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error


def _load_into(path: Path, cell: nn.Cell, tensors: dict[str, Parameter]) -> list[str]:
    """Load tensors into a cell; returns the names of its Parameters that are missing from them."""
    if not list(cell.get_parameters()):
        return []
    try:
        if isinstance(cell, THOR):
            cell.load(tensors)
            return []
        return list(ms.load_param_into_net(cell, tensors)[0])
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error


def _first_names(names: Sequence[str]) -> str:
    """The first five names, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
