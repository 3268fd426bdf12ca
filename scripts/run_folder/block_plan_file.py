"""The block plan that ``block_size: auto`` has chosen, saved in the run's folder.

A checkpoint fits only the plan that it was made with. THOR caches its measurements per user and machine, so a run that
is resumed on another machine, or without that cache, would measure again and could choose another plan.
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
    """True if the run chooses its block plan at its first step."""
    return settings.optimizer == "thor" and settings.thor.block_size == "auto"


def save_block_plan(folder: Path, optimizer: nn.Cell) -> None:
    """Write the block plan of a thor.THOR."""
    plan = optimizer.options.plan
    about = {
        "block_size": plan.block_size, "split": plan.split, "rank": plan.rank, "order": plan.order,
        "layers": dict(plan.layers),
    }  # fmt: skip
    with reporting_write_errors(folder, "the blocks that were chosen are not saved, and no checkpoint of them"):
        write_atomically(folder / BLOCK_PLAN, json.dumps(about, indent=1))


def load_block_plan(folder: Path) -> BlockPlan | None:
    """Read the block plan of the run in a folder; None if there is none."""
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
