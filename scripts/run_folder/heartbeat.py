"""Signs of life of a job's processes, for the launcher that watches them (scripts/cluster/launch.py).

Each rank has a small file in the folder that the launcher names, and replaces it when it begins something: what, at
which step, and when. So a rank that hangs is the one that is behind, and not those that wait for it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.common.atomic_write import write_atomically

VARIABLE = "THOR_HEARTBEATS"
# What a rank may be doing, in the order of a step.
STARTING, DATA, STEP, EVALUATION, DONE = "starting", "data", "step", "evaluation", "done"
ORDER = (STARTING, DATA, STEP, EVALUATION, DONE)


@dataclass(frozen=True)
class Beat:
    """A sign of life.

    Attributes:
        step: Steps that the rank has completed.
        doing: One of ORDER.
        at: Seconds on the host's monotonic clock, which all its processes share.
    """

    step: int
    doing: str
    at: float

    @property
    def progress(self) -> tuple[int, int]:
        """Grows as the rank goes on."""
        return self.step, ORDER.index(self.doing)

    def __str__(self) -> str:
        """Where the rank is, in words."""
        return "while starting" if self.doing == STARTING else f"after step {self.step} ({self.doing})"


class Heart:
    """Leaves signs of life where a launcher asks for them, and notices when that launcher is gone."""

    def __init__(self, rank: int) -> None:
        trains = os.environ.get("MS_ROLE") != "MS_SCHED"  # msrun's scheduler runs the same program as rank 0 too
        folder = os.environ.get(VARIABLE) if trains else None
        self._file = Path(folder, f"rank-{rank}.json") if folder else None
        self._parent = os.getppid()
        self._first: int | None = None

    def beat(self, step: int, doing: str) -> None:
        """Something begins. The first step still counts as starting: MindSpore compiles in it."""
        if doing != STARTING and self._first is None:
            self._first = step
        if doing in (DATA, STEP) and step == self._first:
            doing = STARTING
        if self._file:
            # One that is missed does no harm, and training is worth more than its signs of life: if none can be left
            # any more, the launcher says so, and goes on from a checkpoint.
            with suppress(OSError):
                write_atomically(self._file, json.dumps(asdict(Beat(step, doing, time.monotonic()))))

    @property
    def orphaned(self) -> bool:
        """Whether the process that has started this one for a launcher is gone, and the launcher with it."""
        return self._file is not None and os.getppid() != self._parent


def read(folder: Path) -> dict[int, Beat]:
    """The newest sign of life of each rank."""
    files = folder.glob("rank-*.json")
    return {int(file.stem.removeprefix("rank-")): Beat(**json.loads(file.read_text())) for file in files}
