"""Two checkpoints of a small network whose newer one is damaged: it is refused, and the older one is whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mindspore import nn

from scripts.run_folder import checkpoints
from scripts.run_folder.progress_record import Position

OLDER, NEWER = 3, 7
NEWEST = Path(f"step-{NEWER:08d}.json")
Found = tuple[nn.Cell, Position | None]


def network(value: float = 0.0) -> nn.Cell:
    """Its weights all have one value, by which a checkpoint is known again."""
    return nn.SequentialCell(nn.Dense(6, 5, value, value), nn.Dense(5, 2, value, value))


def position(step: int) -> Position:
    return Position(step=step, epoch=1, step_in_epoch=step, seconds=0.25 * step, seed=3, loss_sum=1.5, best=0.5,
                    best_step=step, phases={"plain": [step, 0.1], "data": [step, 0.02]})  # fmt: skip


def make(folder: Path) -> None:
    for step in (OLDER, NEWER):
        checkpoints.save(folder, checkpoints.collect_tensors((network(step),)), position(step), keep=2)


def resume(folder: Path) -> Found:
    """As --resume does."""
    step = checkpoints.last_step(folder)
    assert step is not None
    net = network()
    return net, checkpoints.load(folder, step, (net,), 0)


def evaluate(folder: Path) -> Found:
    """As scripts/eval.py does."""
    net = network()
    checkpoints.load_network(checkpoints.choose(folder, "best"), net)
    return net, None


def is_the_newest(folder: Path, found: Found) -> None:
    """Whatever was damaged, what is read is what was saved."""
    _must_be(NEWER, found)


def use_the_one_before(folder: Path) -> None:
    """What the refusal asks for: remove the file, and go on."""
    for suffix in checkpoints.CHECKPOINT_SUFFIXES:
        (folder / NEWEST).with_suffix(suffix).unlink(missing_ok=True)
        _must_be(OLDER, resume(folder))


def evaluate_the_last(folder: Path) -> None:
    """What the refusal asks for."""
    net = network()
    checkpoints.load_network(checkpoints.choose(folder, "last"), net)
    _must_be(NEWER, (net, None))


def _must_be(step: int, found: Found) -> None:
    """Bit for bit what was saved after a step, and where the run stood."""
    net, where = found
    for parameter in net.get_parameters():
        assert np.array_equal(parameter.asnumpy(), np.full(parameter.shape, step, np.float32)), parameter.name
    assert where is None or where == position(step), where
