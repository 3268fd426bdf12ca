"""``THOR(block_size="auto")``: profiles the network on the first batch and caches the profile for later runs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn

from thor.capture.targets import Target
from thor.profile.measure import Task, environment, measure
from thor.profile.profile_file import Profile
from thor.runtime.memory import available_memory

logger = logging.getLogger("thor")

CACHE_VARIABLE = "THOR_CACHE_DIR"


def cache_folder() -> Path:
    """The folder for profiles of ``"auto"``: $THOR_CACHE_DIR, or thor/ in the user's cache folder."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thor"


def cache_file(targets: Sequence[Target], method: str) -> Path:
    """The cached profile's path: one per device, machine, MindSpore version, inverse method and layer shapes."""
    where = {
        key: value for key, value in environment(method).items() if key in ("device", "inverse", "mindspore", "machine")
    }
    layers = [(t.kind, t.copies, t.a_dim, t.g_dim) for t in targets]
    digest = hashlib.sha256(json.dumps([where, layers], sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"profile-{where['device'].lower()}-{digest}.json"


def cached(path: Path) -> Profile | None:
    """The profile of an earlier run; None if there is none, or if its file cannot be used (logged as a warning)."""
    try:
        return Profile.load(path) if path.exists() else None
    except (ValueError, OSError) as error:
        logger.warning("the kept profile cannot be used, the first step measures again: %s", error)
        return None


def profile_for_training(
    net: nn.Cell, forward: Callable[..., Any], inputs: tuple[Tensor, ...], path: Path, skip: Sequence[str],
    inverse: str,
) -> Profile:  # fmt: skip
    """Profile a network without ports on one batch, show progress on standard error, and save the profile.

    ``forward`` is the loss of the batch.
    """
    task = Task(
        net=net, forward=forward, batches=lambda: iter([inputs]), skip=skip, inverse=inverse, details=False,
        memory=available_memory() // 2, describe={"network": type(net).__name__, "batches": 1, "source": "training"},
    )  # fmt: skip
    progress = _ProgressLine()
    try:
        profile = measure(task, progress=progress)
    finally:
        progress.close()
    try:
        profile.save(path)
        logger.info("profile kept in %s", path)
    except OSError as error:
        logger.warning("the profile cannot be kept in %s (%s): the next run measures again", path, error)
    return profile


def describe_choice(profile: Profile) -> str:
    """The chosen block size, its crossing and the device, as one line for the log."""
    crossing = profile.crossing()
    where = "no crossing" if crossing.dim is None else f"crossing at {crossing.dim:.0f}"
    return f"block size {crossing.chosen} ({where}; {profile.environment['device']}, MindSpore {ms.__version__})"


class _ProgressLine:
    """Progress on standard error: one line that is rewritten on a terminal, one line per stage otherwise."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.total, self.done, self.name = 1.0, 0.0, ""
        self.live = sys.stderr.isatty()

    def stage(self, name: str, total: float) -> None:
        self.name, self.total, self.done = name, max(total, 1e-9), 0.0
        self._show(end="" if self.live else "\n")

    def advance(self, amount: float) -> None:
        self.done += amount
        if self.live:
            self._show(end="")

    def _show(self, end: str) -> None:
        share = min(1.0, self.done / self.total)
        head = "\r" if self.live else ""
        text = f"thor: choosing the block size, {self.name} {share:4.0%}, {time.monotonic() - self.start:.0f} s"
        print(f"{head}{text:100}" if self.live else text, end=end, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.live:
            print(file=sys.stderr)
