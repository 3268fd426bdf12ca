"""A training run from settings to results: data, network and optimizer put together, and the loop over steps."""

from __future__ import annotations

import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn
from rich.console import Console

from scripts import checkpoint
from scripts.checkpoint import Position
from scripts.config import differences, load_config, save_config
from scripts.data import fashion_mnist
from scripts.data.batches import Batches
from scripts.errors import UserError
from scripts.evaluation import Evaluator
from scripts.networks import build_loss, build_network
from scripts.optimizers import Stepper, build_stepper
from scripts.progress import ProgressDisplay
from scripts.recorder import Recorder, write_summary
from scripts.settings import TrainSettings

CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
PIXEL_MEAN, PIXEL_STD = 0.2860, 0.3530  # of Fashion-MNIST's training images


@dataclass
class Interrupt:
    """Whether the user has asked the run to end."""

    requested: bool = False


@dataclass
class Run:
    """Everything a training run works with."""

    settings: TrainSettings
    folder: Path
    device: str
    network: nn.Cell
    stepper: Stepper
    batches: Batches
    evaluator: Evaluator
    console: Console
    position: Position = field(default_factory=Position)
    finished: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Steps an epoch: whole batches, and whole groups of `accumulation` of them."""
        return whole_steps(self.settings, len(self.batches))


def train(settings: TrainSettings, resume: bool = False, console: Console | None = None) -> Run:
    """Train as the settings say. The run's `finished` is False if the user has ended it early."""
    folder = Path(settings.out)
    if resume:
        _check_same(settings, folder)
    run = _prepare(settings, folder, console or Console())
    if resume:
        run.position = checkpoint.load_last(folder / CHECKPOINTS, run.network, run.stepper.optimizer)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.clear(folder / CHECKPOINTS)
        (folder / "summary.json").unlink(missing_ok=True)
        save_config(settings, folder / CONFIG)
    recorder = Recorder(folder, run.position.step if resume else None)
    try:
        with _asking_to_end() as interrupt:
            _loop(run, recorder, interrupt)
    except FloatingPointError as error:
        raise UserError(f"{settings.optimizer}, after step {run.position.step}: {error}") from error
    finally:
        recorder.close()
    write_summary(folder, _about(run))
    return run


def whole_steps(settings: TrainSettings, batches: int) -> int:
    """Steps an epoch, a multiple of the accumulation; an error where there is none."""
    steps = batches // settings.accumulation * settings.accumulation
    if steps == 0:
        raise UserError(
            f"batch_size = {settings.batch_size} with accumulation = {settings.accumulation}: "
            f"the training images make only {batches} batches an epoch"
        )
    return steps


def _check_same(settings: TrainSettings, folder: Path) -> None:
    """An error unless the folder holds a run of these settings."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"nothing to resume: {path} is missing")
    changed = differences(load_config(path), settings)
    if changed:
        raise UserError(f"cannot resume {folder} with other settings: {'; '.join(changed)}")


def _prepare(settings: TrainSettings, folder: Path, console: Console) -> Run:
    """Data, network and optimizer of a run."""
    device = _select_device(settings)
    ms.set_context(mode=ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(settings.seed)
    data = fashion_mnist.resolve(settings.data.folder)
    train_set, test_set = (fashion_mnist.load(data, part) for part in ("train", "test"))
    mean, std = (0.0, 1.0) if settings.reconstructs else (PIXEL_MEAN, PIXEL_STD)
    batches = Batches(
        images=train_set.images[: settings.data.train_size],
        labels=train_set.labels[: settings.data.train_size],
        batch_size=settings.batch_size,
        seed=settings.seed,
        mean=mean,
        std=std,
        crop=settings.data.crop,
        flip=settings.data.flip,
    )
    network = build_network(settings)
    network.set_train()
    loss = build_loss(settings)
    if settings.optimizer != "thor":
        from thor.device import fast_convolutions

        fast_convolutions(network)
    stepper = build_stepper(settings, network, loss, whole_steps(settings, len(batches)))
    evaluator = Evaluator(network, loss, test_set, mean, std, settings)
    return Run(settings, folder, device, network, stepper, batches, evaluator, console)


def _select_device(settings: TrainSettings) -> str:
    """Set MindSpore's target."""
    import thor

    try:
        return thor.device.select(settings.device)
    except ValueError as error:
        raise UserError(str(error)) from error


@contextmanager
def _asking_to_end() -> Iterator[Interrupt]:
    """Within, SIGINT and SIGTERM only ask the loop to end after its step; a second SIGINT ends it at once."""
    interrupt = Interrupt()

    def ask(number: int, frame: Any) -> None:
        if interrupt.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.requested = True

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _loop(run: Run, recorder: Recorder, interrupt: Interrupt) -> None:
    """Epochs from where the run stands to its end."""
    settings, done = run.settings, run.position.step
    with ProgressDisplay(settings.optimizer, settings.epochs, run.steps_per_epoch, done, run.console) as display:
        while run.position.epoch < settings.epochs:
            if not _epoch(run, recorder, display, interrupt):
                recorder.flush()
                return
            _end_of_epoch(run, recorder, display)
    run.finished = True


def _epoch(run: Run, recorder: Recorder, display: ProgressDisplay, interrupt: Interrupt) -> bool:
    """The steps that are left of the epoch under way; False if the user ended it."""
    settings, epoch = run.settings, run.position.epoch
    batches = run.batches.epoch(epoch, run.position.step_in_epoch)
    decided = len(run.stepper.history())
    for images, labels in batches:
        if run.position.step_in_epoch == run.steps_per_epoch:
            break
        begin = time.perf_counter()
        inputs = Tensor(images)
        loss = float(run.stepper.step(inputs, inputs if settings.reconstructs else Tensor(labels)).asnumpy())
        seconds = time.perf_counter() - begin
        run.position = _moved(run.position, loss, seconds)
        decided = _record(run, recorder, loss, seconds, decided)
        display.step(run.position.step, epoch + 1, loss, 1e3 * seconds)
        whole = run.position.step % settings.accumulation == 0
        if interrupt.requested and whole:
            _save(run, recorder)
            return False
        if settings.checkpoint_every and run.position.step % settings.checkpoint_every == 0 and whole:
            _save(run, recorder)
    return True


def _moved(position: Position, loss: float, seconds: float) -> Position:
    """The position after one more step."""
    return replace(
        position,
        step=position.step + 1,
        step_in_epoch=position.step_in_epoch + 1,
        seconds=position.seconds + seconds,
        loss_sum=position.loss_sum + loss,
    )


def _record(run: Run, recorder: Recorder, loss: float, seconds: float, decided: int) -> int:
    """Lines for a step and for the refresh decisions since `decided`; how many decisions there are now."""
    position = run.position
    if position.step % run.settings.log_every == 0:
        recorder.step(
            step=position.step,
            epoch=round(position.step / run.steps_per_epoch, 4),
            loss=loss,
            ms_per_step=round(1e3 * seconds, 2),
            seconds=round(position.seconds, 3),
        )
    history = run.stepper.history()
    for decision in history[decided:]:
        recorder.refresh(decision)
    return len(history)


def _end_of_epoch(run: Run, recorder: Recorder, display: ProgressDisplay) -> None:
    """Evaluate, record, and make a checkpoint of the epoch just completed."""
    settings = run.settings
    train_loss = run.position.loss_sum / run.position.step_in_epoch
    position = replace(run.position, epoch=run.position.epoch + 1, step_in_epoch=0, loss_sum=0.0)
    run.position = replace(position, seed=settings.seed)
    results: dict[str, float] = {}
    metric = None
    if position.epoch % settings.eval_every == 0 or position.epoch == settings.epochs:
        test_loss, name, value = run.evaluator()
        results = {"test_loss": test_loss, f"test_{name}": value}
        metric = (name, value)
    recorder.epoch(
        step=position.step, epoch=position.epoch, train_loss=train_loss, **results, seconds=round(position.seconds, 3)
    )
    _save(run, recorder)
    display.epoch(position.epoch, train_loss, metric, position.seconds)


def _save(run: Run, recorder: Recorder) -> None:
    """A checkpoint, with all lines up to it in the metrics file."""
    recorder.flush()
    checkpoint.save(run.folder / CHECKPOINTS, run.network, run.stepper.optimizer, run.position)


def _about(run: Run) -> dict[str, Any]:
    """What a run was, for its summary."""
    return {
        "optimizer": run.settings.optimizer,
        "network": run.settings.network,
        "finished": run.finished,
        "weights": sum(weight.size for weight in run.network.trainable_params()),
        "batch_size": run.settings.batch_size,
        "seed": run.settings.seed,
        "device": run.device,
        "mode": run.settings.mode,
        "mindspore": ms.__version__,
        "python": platform.python_version(),
    }
