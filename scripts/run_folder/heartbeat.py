"""Heartbeats of a job's processes, for the launcher that watches them (scripts/cluster/launch.py).

Each rank writes a small file in a folder that the launcher chooses. At each phase of a step it replaces the file with
the phase, the step and the time. The rank that hangs is the one that is behind; the others only wait for it.
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
# Phases of a rank, in the order of a step.
STARTING, DATA, STEP, EVALUATION, DONE = "starting", "data", "step", "evaluation", "done"
ORDER = (STARTING, DATA, STEP, EVALUATION, DONE)


@dataclass(frozen=True)
class Beat:
    """A heartbeat.

    Attributes:
        step: Steps that the rank has completed.
        doing: The phase that begins, one of ORDER.
        at: Seconds on the host's monotonic clock, which all its processes share.
    """

    step: int
    doing: str
    at: float

    @property
    def progress(self) -> tuple[int, int]:
        """A sort key that grows with the rank's progress."""
        return self.step, ORDER.index(self.doing)

    def __str__(self) -> str:
        """The rank's progress, for messages."""
        return "while starting" if self.doing == STARTING else f"after step {self.step} ({self.doing})"


class Heart:
    """Writes heartbeats if a launcher asks for them, and detects that the launcher is gone."""

    def __init__(self, rank: int) -> None:
        trains = os.environ.get("MS_ROLE") != "MS_SCHED"  # msrun's scheduler also runs this program, as rank 0
        folder = os.environ.get(VARIABLE) if trains else None
        self._file = Path(folder, f"rank-{rank}.json") if folder else None
        self._parent = os.getppid()
        self._first: int | None = None

    def beat(self, step: int, doing: str) -> None:
        """Report that a phase begins. The first step still counts as starting, because MindSpore compiles in it."""
        if doing != STARTING and self._first is None:
            self._first = step
        if doing in (DATA, STEP) and step == self._first:
            doing = STARTING
        if self._file:
            # A failed write must not end the training. If heartbeats stay away, the launcher reports it and restarts
            # from a checkpoint.
            with suppress(OSError):
                write_atomically(self._file, json.dumps(asdict(Beat(step, doing, time.monotonic()))), durable=False)

    @property
    def orphaned(self) -> bool:
        """True if a launcher started this process and the parent process, and with it the launcher, is gone."""
        return self._file is not None and os.getppid() != self._parent


def read(folder: Path) -> dict[int, Beat]:
    """The newest heartbeat of each rank."""
    files = folder.glob("rank-*.json")
    return {int(file.stem.removeprefix("rank-")): Beat(**json.loads(file.read_text())) for file in files}
