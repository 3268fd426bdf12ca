"""A training run from settings to results: it builds data, network and optimizer, and loops over the steps."""

from __future__ import annotations

import math
import os
import platform
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn
from rich.console import Console

from scripts.common.errors import reporting_write_errors
from scripts.common.memory_use import memory, peak_memory
from scripts.data.factory import Feeds
from scripts.run_folder import checkpoints, heartbeat
from scripts.run_folder.block_plan_file import BLOCK_PLAN, chooses_block_plan, load_block_plan, save_block_plan
from scripts.run_folder.class_names_file import check_class_names, save_class_names
from scripts.run_folder.folder_lock import folder_lock
from scripts.run_folder.heartbeat import Heart
from scripts.run_folder.metrics_recorder import NullRecorder, Recorder, open_tensorboard, write_summary
from scripts.run_folder.progress_record import Position
from scripts.run_folder.stop_request import Interrupt, job_start_time, watch_stop_requests
from scripts.run_folder.vocabulary_file import check_vocabulary, save_vocabulary
from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import differences, load_config, save_config
from scripts.training.build import build, count_steps, make_convolutions_fast, select_device
from scripts.training.check_shapes import check_fit
from scripts.training.evaluation import Evaluator, Scores
from scripts.training.job_ranks import Ranks, announced_rank, join, with_ranks
from scripts.training.optimizers import Stepper, build_stepper
from scripts.training.phase_times import Phases
from scripts.training.progress_display import ProgressDisplay
from scripts.training.weight_average import WeightAverage
from thor.runtime.errors import UserError

CONFIG = "config.yaml"
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


def train(
    settings: TrainSettings, resume: bool | str = False, console: Console | None = None, overwrite: bool = False
) -> Run:
    """Train a network. The run's `finished` is False if the user has ended it early.

    All ranks of a job (scripts.training.job_ranks) call this; only the first one writes files and shows progress.

    Args:
        settings: The configuration.
        resume: Resume from the last checkpoint in the run's folder; "auto" starts a new run if there is none.
        console: Console for the progress.
        overwrite: Start a new run even if the folder has checkpoints, and remove them; UserError otherwise.
    """
    folder, began = Path(settings.out), job_start_time()
    device = select_device(settings.device)
    heart = Heart(announced_rank(os.environ))
    heart.beat(0, heartbeat.STARTING)
    ranks = join(settings)
    # The lock comes before the search for checkpoints: another process may be adding to them.
    with folder_lock(folder, ranks.leads):
        start = ranks.broadcast_step(_step_to_resume(settings, folder, resume, overwrite) if ranks.leads else -1)
        run = _prepare(ranks.settings(settings), folder, device, ranks, heart, console or Console(), start >= 0)
        run.began = began
        _train(run, settings, start)
    ranks.wait_for_all()  # msrun kills all ranks once one exits with a non-zero status, as after a stop request
    heart.beat(run.position.step, heartbeat.DONE)
    return run


def _train(run: Run, settings: TrainSettings, start: int) -> None:
    """Train from step ``start``, or from the beginning if it is negative; ``settings`` are those of the job."""
    folder, ranks = run.folder, run.ranks
    if start >= 0:
        check_vocabulary(folder, run.feeds)
        check_class_names(folder, run.feeds)
        run.position, run.saved = checkpoints.load(folder / CHECKPOINTS, start, run.cells, run.steps_per_epoch), start
        run.phases.restore(run.position.phases)
    else:
        run.position = Position(steps_per_epoch=run.steps_per_epoch)
        ranks.copy_first(list(run.network.get_parameters()))  # a user's factory may ignore the seed
    resumed = run.position if start >= 0 else None
    board = None
    if ranks.leads:
        if settings.tensorboard:  # first, since its library may be missing: nothing is removed yet
            board = open_tensorboard(folder, resumed)
        with reporting_write_errors(
            folder, "nothing is trained yet" if start < 0 else "nothing is trained since the last checkpoint"
        ):
            if start < 0:
                checkpoints.clear(folder / CHECKPOINTS)
                (folder / "summary.json").unlink(missing_ok=True)
            save_vocabulary(folder, run.feeds)
            save_class_names(folder, run.feeds)
            save_config(with_ranks(settings), folder / CONFIG)  # also of a resumed run: data.folder may have changed
    recorder = Recorder(folder, resumed, board) if ranks.leads else NullRecorder()
    try:
        with watch_stop_requests(folder, run.began, ranks.leads) as interrupt:
            _loop(run, recorder, interrupt)
    except FloatingPointError as error:
        raise UserError(f"{settings.optimizer}, after step {run.position.step}: {error}") from error
    finally:
        recorder.close()
    about = _run_facts(run)
    if ranks.leads:
        write_summary(folder, about)


def _step_to_resume(settings: TrainSettings, folder: Path, resume: bool | str, overwrite: bool) -> int:
    """Step of the checkpoint to resume, -1 for a new run; UserError if it is missing or a new run would remove it."""
    step = checkpoints.last_step(folder / CHECKPOINTS)
    if not resume and step is not None and not overwrite:
        raise UserError(existing_run_message(folder, step))
    if not resume or (resume == AUTO and step is None):
        return -1
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"nothing to resume: {path} is missing")
    changed = differences(load_config(path), settings)
    if changed:
        raise UserError(f"cannot resume {folder} with other settings: {'; '.join(changed)}")
    if step is None:
        raise UserError(
            f"nothing to resume: {folder / CHECKPOINTS} has no checkpoint (step-*.json with its step-*.ckpt)"
        )
    return step


def existing_run_message(folder: Path, step: int) -> str:
    """The error message for a new run in a folder that has checkpoints of another run."""
    cures = "go on with --resume, begin anew with --overwrite, or choose another --out"
    return f"{folder} holds a run at step {step}: {cures}"


def _prepare(
    settings: TrainSettings, folder: Path, device: str, ranks: Ranks, heart: Heart, console: Console, resumes: bool
) -> Run:
    """Build data, network and optimizer of a run."""
    parts = build(settings, device=device)
    steps = count_steps(settings, len(parts.feeds.train))
    check_fit(settings, parts.feeds, parts.network, parts.loss)
    if settings.optimizer != "thor":
        make_convolutions_fast(parts.network)
    blocks = load_block_plan(folder) if resumes and chooses_block_plan(settings) else None
    stepper = build_stepper(settings, parts.network, parts.loss, steps, blocks)
    evaluator = Evaluator(parts.network, parts.loss, parts.feeds.test, settings, ranks)
    average = WeightAverage(parts.network, settings.ema, settings.mode == "graph") if settings.ema else None
    console = console if ranks.leads else Console(quiet=True)
    return Run(settings, folder, ranks, heart, device, parts.feeds, parts.network, stepper, evaluator, average, console)


def _loop(run: Run, recorder: Recorder, interrupt: Interrupt) -> None:
    """Train the remaining epochs, or until the user asks the run to end."""
    settings, done = run.settings, run.position.step
    unit = "seq/s" if settings.data.name == "text" else "img/s"
    display = ProgressDisplay(settings.optimizer, settings.epochs, run.steps_per_epoch, done, run.console, unit)
    with display:
        while run.position.epoch < settings.epochs:
            if not _epoch(run, recorder, display, interrupt):
                recorder.flush()
                interrupt.done()
                return
            _end_of_epoch(run, recorder, display)
    run.finished = True


def _epoch(run: Run, recorder: Recorder, display: ProgressDisplay, interrupt: Interrupt) -> bool:
    """Train the remaining steps of the current epoch; False if the user ended the run."""
    settings, epoch = run.settings, run.position.epoch
    decided = len(run.stepper.history())
    if _evaluation_is_due(run):  # the run was ended just before this evaluation
        _evaluate_within(run, recorder, display)
    if run.position.step_in_epoch == run.steps_per_epoch:  # or just before the evaluation of the epoch
        return True
    run.heart.beat(run.position.step, heartbeat.DATA)
    batches = run.phases.timed("data", run.feeds.train.epoch(epoch, run.position.step_in_epoch))
    waiting_since = time.perf_counter()
    for batch in batches:
        run.heart.beat(run.position.step, heartbeat.STEP)
        phase, compiled = run.stepper.phase(), run.stepper.compilations()
        begin = time.perf_counter()
        inputs = [Tensor(part) for part in batch[:-1]]
        target = inputs[0] if settings.reconstructs else Tensor(batch[-1])
        loss = float(run.stepper.step(*inputs, target).asnumpy())
        loss, asked = run.ranks.agree(loss, interrupt.requested or run.heart.orphaned)
        seconds = time.perf_counter() - begin
        run.phases.add(phase, seconds, run.stepper.compilations() > compiled)
        run.position = _advanced(run.position, loss, seconds)
        step, whole = run.position.step, run.position.step % settings.accumulation == 0
        if run.average and whole:
            with run.phases.measure("average"):
                run.average.update(step // settings.accumulation - 1)
        decided = _record(run, recorder, loss, seconds, decided)
        rate = settings.batch_size / (time.perf_counter() - waiting_since)  # includes the time to load the data
        display.step(step, epoch + 1, loss, 1e3 * seconds, rate)
        evaluates = _evaluation_is_due(run)
        if whole and (asked or evaluates or due(step, settings.checkpoint_every, settings.accumulation)):
            _save(run, recorder)  # before an evaluation, which may be too long for whoever ends the run
        if asked and whole:
            return False
        if evaluates:
            _evaluate_within(run, recorder, display)
        if run.position.step_in_epoch == run.steps_per_epoch:
            break
        run.heart.beat(step, heartbeat.DATA)
        waiting_since = time.perf_counter()
    return True


def _evaluation_is_due(run: Run) -> bool:
    """True if `eval_every_steps` requires an evaluation now; False if it is done, or if the epoch's end does one."""
    settings, position = run.settings, run.position
    if position.step % settings.accumulation or position.evaluated == position.step:
        return False
    if position.step_in_epoch == 0:  # the end of the last epoch made every evaluation that was due
        return False
    if position.step_in_epoch == run.steps_per_epoch and _evaluates(settings, position.epoch + 1):
        return False
    return due(position.step, settings.eval_every_steps, settings.accumulation)


def _evaluates(settings: TrainSettings, epoch: int) -> bool:
    """True if there is an evaluation at the end of an epoch, counted from 1."""
    return epoch % settings.eval_every == 0 or epoch == settings.epochs


def due(step: int, every: int, accumulation: int) -> bool:
    """True if a multiple of `every` is among the steps of the update that ends at `step`; False if `every` is 0."""
    return every > 0 and step // every > (step - accumulation) // every


def _advanced(position: Position, loss: float, seconds: float) -> Position:
    """The position after one more step. The loss of a skipped step (dynamic loss scale) may not be finite."""
    finite = math.isfinite(loss)
    return replace(
        position,
        step=position.step + 1,
        step_in_epoch=position.step_in_epoch + 1,
        seconds=position.seconds + seconds,
        loss_sum=position.loss_sum + (loss if finite else 0.0),
        not_finite=position.not_finite + (not finite),
    )


def _record(run: Run, recorder: Recorder, loss: float, seconds: float, decided: int) -> int:
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


def _evaluate(run: Run) -> Scores:
    """Evaluate on the test set, with averaged weights if there are any; updates the best value in the position."""
    run.heart.beat(run.position.step, heartbeat.EVALUATION)
    _average_statistics(run)
    with run.phases.measure("evaluation"), run.average.swapped_in() if run.average else nullcontext():
        scores = run.evaluator(lambda: run.heart.beat(run.position.step, heartbeat.EVALUATION))
    run.position = replace(run.position, evaluated=run.position.step)
    if scores.better_than(run.position.best):
        run.position = replace(run.position, best=scores.metric[1], best_step=run.position.step)
    return scores


def _evaluate_within(run: Run, recorder: Recorder, display: ProgressDisplay) -> None:
    """Evaluate within an epoch, and save a checkpoint, which may be the best."""
    scores, position = _evaluate(run), run.position
    epoch = round(position.step / run.steps_per_epoch, 4)
    recorder.evaluation(step=position.step, epoch=epoch, **scores.named(), **_times(run))
    _save(run, recorder)
    display.evaluation(position.step, scores.metric)


def _end_of_epoch(run: Run, recorder: Recorder, display: ProgressDisplay) -> None:
    """Evaluate, record the epoch, and save a checkpoint."""
    settings, epoch = run.settings, run.position.epoch + 1
    evaluated = _evaluates(settings, epoch)
    if evaluated and run.saved != run.position.step:
        _save(run, recorder)  # the evaluation may be too long for whoever has asked the run to end
    finite = run.position.step_in_epoch - run.position.not_finite
    train_loss = run.position.loss_sum / finite if finite else math.nan
    position = replace(run.position, epoch=epoch, step_in_epoch=0, loss_sum=0.0, not_finite=0, seed=settings.seed)
    run.position = position
    scores = _evaluate(run) if evaluated else None
    recorder.epoch(
        step=position.step,
        epoch=position.epoch,
        train_loss=train_loss,
        **(scores.named() if scores else {}),
        **_times(run),
    )
    _save(run, recorder)
    display.epoch(position.epoch, train_loss, scores.metric if scores else None, position.seconds)


def _times(run: Run) -> dict[str, float]:
    """Seconds of training so far, and of the steps among them in which MindSpore compiled."""
    return {"seconds": round(run.position.seconds, 3), "compiling": run.phases.compiling}


def _save(run: Run, recorder: Recorder) -> None:
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


def _run_facts(run: Run) -> dict[str, Any]:
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
        "unreadable_images": int(run.ranks.total([run.feeds.unreadable()])[0]),
        "phases": run.phases.sums(),
        "memory": memory(run.network, run.stepper.optimizer, run.average, run.position.peak),
    }
