"""Read the settings and checkpoints of a finished or interrupted run, for evaluation and export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import load_config
from thor.runtime.errors import UserError

CHOICES = ("best", "last")


def settings_of(folder: Path, overrides: Sequence[str] = ()) -> TrainSettings:
    """The settings of a run, with overrides."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder}: not the folder of a run, config.yaml is missing")
    return load_config(path, overrides)


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
