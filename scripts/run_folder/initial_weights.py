"""Weights to start a new run from: those of a file or of another run, as far as their names and shapes fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mindspore import Parameter, Tensor, nn

from scripts.run_folder import checkpoints
from scripts.run_folder.checkpoints import AVERAGE_PREFIX, BEST, CHECKPOINT_SUFFIXES
from thor.runtime.errors import UserError

_MOST_NAMES = 10  # in one line
_STATE = ("global_step", "learning_rate", "momentum", "beta1_power", "beta2_power")
_STATE_PREFIXES = (AVERAGE_PREFIX, "thor.", "loss_scale.", "adafactor_", "learning_rate_group_")


@dataclass(frozen=True)
class Fitted:
    """Names and shapes of tensors, after the weights of a file were taken.

    Attributes:
        path: The file.
        taken: Tensors of the network that have the file's values.
        other_shape: Tensors of the network that the file has with another shape.
        missing: Tensors of the network that the file lacks.
        unused: Tensors of the file that the network lacks, without averages and optimizer state.
    """

    path: Path
    taken: list[str]
    other_shape: list[str]
    missing: list[str]
    unused: list[str]

    def lines(self) -> list[str]:
        """What fitted and what did not, for display."""
        count = len(self.taken) + len(self.other_shape) + len(self.missing)
        lines = [f"init: {len(self.taken)} of the network's {count} tensors are from {self.path}: {_some(self.taken)}"]
        if self.other_shape:
            lines.append(f"init: of another shape there, so left at their initial values: {_some(self.other_shape)}")
        if self.missing:
            lines.append(f"init: not there, so left at their initial values: {_some(self.missing)}")
        if self.unused:
            lines.append(f"init: there, but not in the network: {_some(self.unused)}")
        return lines


def find_weights(name: str) -> Path:
    """The file of the setting `init`: a file, or the best, else the last checkpoint of a run's folder."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"init = {name}: no such file or folder; give a checkpoint file, or the folder of a run")
    folder = path / "checkpoints"
    best, complete = folder / f"{BEST}{CHECKPOINT_SUFFIXES[0]}", checkpoints.complete(folder)
    if best.is_file():
        return best
    if complete:
        return complete[-1].with_suffix(CHECKPOINT_SUFFIXES[0])
    raise UserError(
        f"init = {name}: no run with a checkpoint is in this folder ({folder}); give the file of the weights"
    )


def take_weights(name: str, network: nn.Cell) -> Fitted:
    """Set the network's tensors to those of the setting `init`, by name and shape; UserError if none fits.

    Running averages of weights (`ema.NAME`) and the state of optimizers are not taken.
    """
    path = find_weights(name)
    checkpoints.check_description(path)
    tensors = {key: value for key, value in checkpoints.read_tensors(path).items() if isinstance(value, Tensor)}
    own = {parameter.name: parameter for parameter in network.get_parameters()}
    known = [key for key in own if key in tensors]
    fits = [key for key in known if tensors[key].shape == own[key].shape]
    shapes = {key: _shaped(value) for key, value in own.items()}
    unused = [_shaped(v) for key, v in tensors.items() if key not in own and not _is_state(key, tensors)]
    if not fits:
        raise UserError(
            f"init = {name}: nothing in {path} fits the network, whose tensors are {_some(list(shapes.values()), 3)}; "
            f"the file has {_some([_shaped(value) for value in tensors.values()], 3)}"
        )
    for key in fits:
        own[key].set_data(Tensor(tensors[key].astype(own[key].dtype).asnumpy().copy()))
    return Fitted(
        path,
        [shapes[key] for key in fits],
        [f"{shapes[key]}, there {tuple(tensors[key].shape)}" for key in known if key not in fits],
        [shapes[key] for key in own if key not in tensors],
        unused,
    )


def _is_state(name: str, names: dict[str, Parameter]) -> bool:
    """True for averages and the state of optimizers: `ema.NAME`, `moments.NAME` and the like, and counters."""
    parts = name.split(".")
    prefixed = any(".".join(parts[start:]) in names for start in range(1, len(parts)))
    return prefixed or name in _STATE or name.startswith(_STATE_PREFIXES)


def _shaped(parameter: Parameter) -> str:
    """Name and shape of a tensor."""
    return f"{parameter.name} {tuple(parameter.shape)}"


def _some(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """The first names, and the number of the others."""
    return "; ".join(names[:most]) + (f"; and {len(names) - most} more" if len(names) > most else "")
