"""Read the settings and checkpoints of a finished or interrupted run, for evaluation and export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import load_config
from thor.runtime.errors import UserError

CHOICES = ("best", "last")
CONFIG = "config.yaml"
MOST_NAMES = 5  # in a message


def settings_of(folder: Path, overrides: Sequence[str] = ()) -> TrainSettings:
    """The settings of a run, with overrides."""
    check_run_folder(folder)
    return load_config(folder / CONFIG, overrides)


def check_run_folder(folder: Path) -> None:
    """Raise UserError if there is no such folder, or no run in it; the message names runs in folders below it."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder" if not folder.exists() else f"{folder}: a file, not a run's folder")
    if (folder / CONFIG).is_file():
        return
    below = sorted(str(path.parent) for path in folder.glob(f"*/{CONFIG}"))
    more = f" and {len(below) - MOST_NAMES} more" if len(below) > MOST_NAMES else ""
    hint = f"; the folders of runs below it are {', '.join(below[:MOST_NAMES])}{more}" if below else ""
    raise UserError(f"{folder}: not the folder of a run, {CONFIG} is missing{hint}")


def checkpoint_of(folder: Path, name: str) -> Path:
    """Path of the checkpoint `best` or `last` of a run, or of the file ``name``."""
    from scripts.run_folder.checkpoints import choose

    if name in CHOICES:
        return choose(folder / "checkpoints", name)
    path = Path(name)
    if not path.is_file():
        raise UserError(
            f"--checkpoint {name}: must be {' or '.join(CHOICES)}, or a file, and there is none of that name"
        )
    return path
