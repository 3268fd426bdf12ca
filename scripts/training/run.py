"""A training run: its state, and what is recorded, evaluated and saved of it."""

from __future__ import annotations

import math
import platform
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import nn
from rich.console import Console

from scripts.common.memory_use import memory, peak_memory
from scripts.data.factory import Feeds
from scripts.run_folder import checkpoints, heartbeat
from scripts.run_folder.block_plan_file import BLOCK_PLAN, chooses_block_plan, save_block_plan
from scripts.run_folder.heartbeat import Heart
from scripts.run_folder.metrics_recorder import Recorder
from scripts.run_folder.progress_record import Position
from scripts.settings.train_settings import TrainSettings
from scripts.training.build import count_steps
from scripts.training.evaluation import Evaluator, Scores
from scripts.training.job_ranks import Ranks
from scripts.training.optimizers import Stepper
from scripts.training.phase_times import Phases
from scripts.training.weight_average import WeightAverage

CHECKPOINTS = "checkpoints"
AUTO = "auto"


@dataclass
class Run:
    """The state of a training run; `saved` is the step of its newest checkpoint."""

    settings: TrainSettings
    folder: Path
    ranks: Ranks
    heart: Heart
    device: str
    feeds: Feeds
    network: nn.Cell
    stepper: Stepper
    evaluator: Evaluator
    average: WeightAverage | None
    console: Console
    position: Position = field(default_factory=Position)
    phases: Phases = field(default_factory=Phases)
    saved: int = -1
    finished: bool = False
    began: float = 0.0  # time.time(); stop requests made after it are for this run

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch, a multiple of `accumulation`; an incomplete last batch is left out."""
        return count_steps(self.settings, len(self.feeds.train))

    @property
    def cells(self) -> tuple[nn.Cell, ...]:
        """The cells whose Parameters make up a checkpoint."""
        return (self.network, self.stepper.optimizer, *self.stepper.state, *([self.average] if self.average else []))


def evaluation_is_due(run: Run) -> bool:
    """True if `eval_every_steps` requires an evaluation now; False if it is done, or if the epoch's end does one."""
    settings, position = run.settings, run.position
    if position.step % settings.accumulation or position.evaluated == position.step:
        return False
    if position.step_in_epoch == 0:  # the end of the last epoch made every evaluation that was due
        return False
    if position.step_in_epoch == run.steps_per_epoch and evaluates_after(settings, position.epoch + 1):
        return False
    return due(position.step, settings.eval_every_steps, settings.accumulation)


def evaluates_after(settings: TrainSettings, epoch: int) -> bool:
    """True if there is an evaluation at the end of an epoch, counted from 1."""
    return epoch % settings.eval_every == 0 or epoch == settings.epochs


def due(step: int, every: int, accumulation: int) -> bool:
    """True if a multiple of `every` is among the steps of the update that ends at `step`; False if `every` is 0."""
    return every > 0 and step // every > (step - accumulation) // every


def advanced(position: Position, loss: float, seconds: float, accumulation: int) -> Position:
    """The position after one more step.

    The loss of an update's last step is the mean over the update; it stands for all its steps. The loss of a skipped
    update may not be finite.
    """
    finite = math.isfinite(loss)
    of_update = accumulation if (position.step + 1) % accumulation == 0 else 0
    return replace(
        position,
        step=position.step + 1,
        step_in_epoch=position.step_in_epoch + 1,
        seconds=position.seconds + seconds,
        loss_sum=position.loss_sum + (of_update * loss if finite else 0.0),
        not_finite=position.not_finite + (0 if finite else of_update),
    )


def record_step(run: Run, recorder: Recorder, loss: float, seconds: float, decided: int) -> int:
    """Record a step and the refresh decisions from number `decided` on; returns the number of decisions so far."""
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
        recorder.refresh(position.step, decision)
    of_ranks = run.stepper.inverse_seconds()
    if of_ranks and len(history) > decided:
        recorder.ranks(position.step, of_ranks)
    return len(history)


def evaluate(run: Run) -> Scores:
    """Evaluate on the test set, with averaged weights if there are any; updates the best value in the position."""
    run.heart.beat(run.position.step, heartbeat.EVALUATION)
    _average_statistics(run)
    with run.phases.measure("evaluation"), run.average.swapped_in() if run.average else nullcontext():
        scores = run.evaluator(lambda: run.heart.beat(run.position.step, heartbeat.EVALUATION))
    run.position = replace(run.position, evaluated=run.position.step)
    if scores.better_than(run.position.best):
        run.position = replace(run.position, best=scores.metric[1], best_step=run.position.step)
    return scores


def times_so_far(run: Run) -> dict[str, float]:
    """Seconds of training so far, and what MindSpore's compiler took of them."""
    return {"seconds": round(run.position.seconds, 3), "compiling": run.phases.compiling}


def save_run(run: Run, recorder: Recorder) -> None:
    """Flush the metrics and save a checkpoint; only its description if the tensors of this step are already saved."""
    recorder.flush()
    _average_statistics(run)
    run.position = replace(run.position, phases=run.phases.sums(), peak=max(run.position.peak, peak_memory()))
    with run.phases.measure("checkpoint"):
        if run.saved != run.position.step:
            tensors = checkpoints.collect_tensors(run.cells)
            if run.ranks.leads:
                if chooses_block_plan(run.settings) and (run.saved < 0 or not (run.folder / BLOCK_PLAN).is_file()):
                    save_block_plan(run.folder, run.stepper.optimizer)
                checkpoints.save(run.folder / CHECKPOINTS, tensors, run.position, run.settings.keep)
        elif run.ranks.leads:
            checkpoints.update_description(run.folder / CHECKPOINTS, run.position)
    run.saved = run.position.step


def _average_statistics(run: Run) -> None:
    """Replace the normalisation statistics of the ranks, which differ with their shares of the batches, by their means.

    Evaluation and checkpoints need one network. The statistics and their running averages are linear in the batches,
    and no gradient depends on them, so it does not matter how often they are averaged. Statistics of a saved step are
    averaged already; averaging them again would change their last bits.
    """
    if run.saved == run.position.step:
        return
    own = [p for p in run.network.get_parameters() if not p.requires_grad and p.dtype in (ms.float32, ms.float16)]
    if run.average:
        own += run.average.of(own)
    run.ranks.average(own)


def run_facts(run: Run) -> dict[str, Any]:
    """Facts about a run for its summary: settings, versions, times and memory."""
    return {
        "optimizer": run.settings.optimizer,
        "network": run.settings.network,
        "data": run.settings.data.name,
        "finished": run.finished,
        "weights": sum(weight.size for weight in run.network.trainable_params()),
        "batch_size": run.settings.batch_size,
        "seed": run.settings.seed,
        "device": run.device,
        "ranks": run.ranks.count,
        "mode": run.settings.mode,
        "mindspore": ms.__version__,
        "python": platform.python_version(),
        "steps": run.position.step,
        "seconds": round(run.position.seconds, 3),
        "best": {"step": run.position.best_step, "value": run.position.best},
        "unreadable_images": int((run.ranks.total(run.feeds.unreadable()) > 0).sum()),
        "phases": run.phases.sums(),
        "memory": memory(run.network, run.stepper.optimizer, run.average, run.position.peak),
    }
