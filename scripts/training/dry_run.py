"""Preview of a run: its main settings, layers, captured factors, memory, steps, and the files that it would write."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import nn
from rich.console import Console
from rich.table import Table

from first_order.cells import own_parameters
from scripts.common.memory_use import memory
from scripts.data import fetch
from scripts.data.factory import PUBLISHED_SIZES, Feeds, open_feeds
from scripts.run_folder import checkpoints
from scripts.run_folder.initial_weights import take_weights
from scripts.run_folder.restore import CONFIG
from scripts.run_folder.write_check import why_not_writable
from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import load_config
from scripts.training.build import count_steps, make_convolutions_fast, select_device
from scripts.training.check_shapes import check_fit
from scripts.training.loop import existing_run_message
from scripts.training.networks import build_loss, build_network
from scripts.training.new_length import changes_besides_epochs
from scripts.training.optimizers import build_stepper
from scripts.training.run import CHECKPOINTS
from scripts.training.schedules import in_words
from thor.runtime.errors import UserError

WRAPPED = "_backbone."  # prefix of the layer names with mixed precision


@dataclass(frozen=True)
class Preview:
    """The run that would be trained.

    Attributes:
        device: The device of the run; the CPU if the chosen one is not available.
        feeds: The data; None if they are missing.
        network: The network.
        optimizer: The optimizer, which takes no step.
        steps_per_epoch: None if the data are missing and their size is unknown.
        initial: What is said of the weights to start from.
        notes: What this machine lacks for the run.
    """

    device: str
    feeds: Feeds | None
    network: nn.Cell
    optimizer: nn.Cell
    steps_per_epoch: int | None
    initial: list[str]
    notes: list[str]


def show(settings: TrainSettings, console: Console | None = None) -> Preview:
    """Print the run that these settings describe; the preview's `notes` tell what is missing for it."""
    console = console or Console()
    preview = _build(settings)
    for line in _header(settings, preview):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    sizes = memory(preview.network, preview.optimizer)
    console.print(_layers(settings.network, preview, sizes["curvature"]))
    left_out = getattr(preview.optimizer, "left_out", [])
    lines = [_captured(preview)] if getattr(preview.optimizer, "layers", []) else []
    lines += [f"not captured: {len(left_out)} layers"] if left_out else []
    lines += [*preview.initial, _memory(sizes), _steps(settings, preview.steps_per_epoch)]
    lines += [f"files: {line}" for line in _files(settings)]
    lines += [f"MISSING HERE: {note}" for note in preview.notes]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return preview


def _build(settings: TrainSettings) -> Preview:
    """Build the network and the optimizer of the run; on the CPU if the device is not available."""
    notes: list[str] = []
    try:
        device = select_device(settings.device)
    except UserError as error:
        notes.append(f"{error}")
        device = select_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(settings.seed)
    feeds: Feeds | None = None
    try:
        with fetch.without_fetching():
            feeds = open_feeds(settings)
    except UserError as error:
        notes.append(f"the data: {error}")
    steps = _steps_per_epoch(settings, feeds)
    try:
        network, loss = build_network(settings, _options_by_data(settings, feeds)), build_loss(settings)
    except UserError as error:  # missing data may be the cause
        raise UserError("\n       ".join([f"{error}", *(f"MISSING HERE: {note}" for note in notes)])) from None
    if feeds:
        check_fit(settings, feeds, network, loss)
    initial: list[str] = []
    if settings.init:
        try:
            initial = take_weights(settings.init, network).lines()
        except UserError as error:
            notes.append(f"{error}")
    if settings.optimizer != "thor":
        make_convolutions_fast(network)
    stepper = build_stepper(settings, network, loss, steps or settings.accumulation)
    return Preview(device, feeds, network, stepper.optimizer, steps, initial, [*notes, *_missing_to_write(settings)])


def _missing_to_write(settings: TrainSettings) -> list[str]:
    """What the run lacks to write its files."""
    notes = []
    reason = why_not_writable(Path(settings.out))
    if reason:
        notes.append(f"out = {settings.out}: the folder cannot be made or written ({reason}); give another --out")
    if settings.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        notes.append("tensorboard = true needs tensorboardX: pip install tensorboardX (or the extra 'tensorboard')")
    return notes


def _header(settings: TrainSettings, preview: Preview) -> list[str]:
    """The run's main settings."""
    own = getattr(settings, settings.optimizer)
    inner = f" with {own.inner} inside" if settings.optimizer == "thor" else ""
    options = "".join(f", {name} = {value}" for name, value in settings.network_options.items())
    where = f", in {preview.feeds.origin}" if preview.feeds else ", not on this machine"
    device = preview.device if settings.device in ("auto", preview.device) else f"{settings.device}, missing here"
    return [
        f"network:   {settings.network}{options}",
        f"optimizer: {settings.optimizer}{inner}",
        f"rate:      {in_words(own.learning_rate, own.schedule, settings.epochs)}",
        f"data:      {settings.data.name}{where}",
        f"training:  {_batch(settings)}, {settings.epochs} epochs, seed {settings.seed}",
        f"device:    {device}, {settings.mode} mode, amp {settings.amp}",
        f"out:       {settings.out}",
    ]


def _options_by_data(settings: TrainSettings, feeds: Feeds | None) -> dict[str, Any]:
    """Arguments for the network's factory that depend on the data; without the text, from its settings."""
    if feeds:
        return feeds.network_options
    return {"vocab_size": settings.data.vocabulary} if settings.data.name == "text" else {}


def _steps_per_epoch(settings: TrainSettings, feeds: Feeds | None) -> int | None:
    """Steps per epoch, from the data or from the data set's published size; None if neither is known."""
    if feeds:
        return count_steps(settings, len(feeds.train))
    examples = PUBLISHED_SIZES.get(settings.data.name)
    if examples is None:
        return None
    examples = min(examples, settings.data.train_size or examples)
    return count_steps(settings, examples // settings.batch_size)


def _captured(preview: Preview) -> str:
    """How many layers of each kind THOR captures."""
    kinds = Counter(record.kind for record in preview.optimizer.layers)
    return f"captured: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}"


def _layers(title: str, preview: Preview, curvature: dict[str, int]) -> Table:
    """A table of the layers that have weights, and of their factors if they are captured."""
    captured = {record.name: record for record in getattr(preview.optimizer, "layers", [])}
    table = Table(title=title)
    table.add_column("layer", overflow="fold")  # on a narrow terminal names are folded, so that numbers stay whole
    table.add_column("kind", no_wrap=True)
    for column in ("weights", "A", "G", "KiB") if captured else ("weights",):
        table.add_column(column, justify="right", no_wrap=True)
    for name, cell in preview.network.cells_and_names():
        own = [p for p in own_parameters(cell) if p.requires_grad]
        if not own:
            continue
        row = [
            name.removeprefix(WRAPPED),
            getattr(cell, "thor_original", type(cell)).__name__,
        ]
        row.append(f"{sum(p.size for p in own):,}")
        if name in captured:
            row += [*_factors(captured[name]), f"{curvature.get(name, 0) / 1024:.1f}"]
        table.add_row(*row)
    return table


def _factors(record: Any) -> list[str]:
    """Size of each factor, and number and size of its diagonal blocks."""
    sizes = []
    for size, blocks in ((record.a_dim, record.blocks[0]), (record.g_dim, record.blocks[1])):
        sizes.append(f"{size}={blocks[0]}x{blocks[1]}" if blocks else f"{size}")
    return sizes


def _memory(sizes: dict[str, Any]) -> str:
    """Memory that a run holds throughout; the activations are unknown before a step runs."""
    parts = {
        "weights": sizes["weights"],
        "optimizer": sizes["optimizer"],
        "of it curvature": sizes["curvature"].get("total", 0),
    }
    told = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in parts.items() if size)
    return f"memory: {told} (besides activations)"


def _batch(settings: TrainSettings) -> str:
    """The batch, in words."""
    words = f"batch {settings.batch_size}"
    if settings.data.ranks > 1:
        words += f" ({settings.share} on each of {settings.data.ranks} ranks)"
    if settings.accumulation > 1:
        words += f" x {settings.accumulation} accumulated"
    return words


def _steps(settings: TrainSettings, per_epoch: int | None) -> str:
    """Length of the run in steps."""
    if per_epoch is None:
        return "steps: not known without the data"
    return f"steps: {per_epoch:,} an epoch, {per_epoch * settings.epochs:,} in {settings.epochs} epochs"


def _files(settings: TrainSettings) -> list[str]:
    """The files that the run would write, and the checkpoint that its folder has now."""
    folder = Path(settings.out)
    lines = [f"{folder}/ for metrics.jsonl, metrics.csv, refreshes.csv, summary.json, {CONFIG}"]
    lines.append(f"{folder / CHECKPOINTS}/ for the newest {settings.keep} checkpoints and the best one")
    if settings.tensorboard:
        lines.append(f"{folder}/tensorboard/ for TensorBoard")
    there, needed = existing_run_message(folder), ""
    if checkpoints.last_step(folder / CHECKPOINTS) is not None:
        changed = changes_besides_epochs(load_config(folder / CONFIG), settings) if (folder / CONFIG).is_file() else []
        needed = f" (--resume needs its settings: {'; '.join(changed)})" if changed else ""
    if there:
        lines.append(there + needed)
    return lines
