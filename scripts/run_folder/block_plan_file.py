"""The blocks that ``block_size: auto`` has chosen, kept in the run's folder: a checkpoint belongs to them.

THOR keeps what it measured in a cache of the user and the machine. A run that goes on elsewhere, or after that cache
is gone, would measure anew, and could choose others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mindspore import nn

from scripts.common.atomic_write import write_atomically
from scripts.common.errors import reporting_write_errors
from scripts.settings.train_settings import TrainSettings
from thor.runtime.errors import UserError

if TYPE_CHECKING:
    from thor import BlockPlan

BLOCK_PLAN = "blocks.json"


def chooses_block_plan(settings: TrainSettings) -> bool:
    """Whether the run's blocks are chosen at its first step."""
    return settings.optimizer == "thor" and settings.thor.block_size == "auto"


def save_block_plan(folder: Path, optimizer: nn.Cell) -> None:
    """Write the plan that a thor.THOR has chosen."""
    plan = optimizer.options.plan
    about = {
        "block_size": plan.block_size, "split": plan.split, "rank": plan.rank, "order": plan.order,
        "layers": dict(plan.layers),
    }  # fmt: skip
    with reporting_write_errors(folder, "the blocks that were chosen are not saved, and no checkpoint of them"):
        write_atomically(folder / BLOCK_PLAN, json.dumps(about, indent=1))


def load_block_plan(folder: Path) -> BlockPlan | None:
    """The plan of the run in a folder; None where none is kept."""
    from thor import BlockPlan

    path = folder / BLOCK_PLAN
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        layers = {name: tuple(size) if isinstance(size, list) else size for name, size in about["layers"].items()}
        return BlockPlan(**{**about, "layers": layers})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: does not hold the blocks of a run ({error}); bring it back, or begin anew") from None
