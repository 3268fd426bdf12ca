"""The training loop: from settings, over data, network and optimizer, through the steps to a finished run."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path

from mindspore import Tensor
from rich.console import Console

from first_order.compiled import CompiledFunction
from scripts.common.errors import reporting_write_errors
from scripts.run_folder import checkpoints, heartbeat
from scripts.run_folder.block_plan_file import chooses_block_plan, load_block_plan
from scripts.run_folder.class_names_file import check_class_names, save_class_names
from scripts.run_folder.folder_lock import folder_lock
from scripts.run_folder.heartbeat import Heart
from scripts.run_folder.initial_weights import take_weights
from scripts.run_folder.metrics_recorder import NullRecorder, Recorder, open_tensorboard, write_summary
from scripts.run_folder.progress_record import Position
from scripts.run_folder.restore import CONFIG
from scripts.run_folder.stop_request import Interrupt, job_start_time, watch_stop_requests
from scripts.run_folder.vocabulary_file import check_vocabulary, load_vocabulary, save_vocabulary
from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import load_config, save_config
from scripts.training.build import Parts, build, count_steps, make_convolutions_fast, select_device
from scripts.training.check_shapes import check_fit
from scripts.training.evaluation import Evaluator
from scripts.training.job_ranks import Ranks, announced_rank, join, with_ranks
from scripts.training.new_length import changes_besides_epochs, check_epochs, describe_change
from scripts.training.optimizers import build_stepper
from scripts.training.progress_display import ProgressDisplay
from scripts.training.run import (
    AUTO,
    CHECKPOINTS,
    Run,
    advanced,
    due,
    evaluate,
    evaluates_after,
    evaluation_is_due,
    record_step,
    run_facts,
    save_run,
    times_so_far,
)
from scripts.training.weight_average import WeightAverage
from thor.runtime.errors import UserError


def train(
    settings: TrainSettings,
    resume: bool | str = False,
    console: Console | None = None,
    overwrite: bool = False,
    began: float | None = None,
) -> Run:
    """Train a network. The run's `finished` is False if the user has ended it early.

    All ranks of a job (scripts.training.job_ranks) call this; only the first one writes files and shows progress.

    Args:
        settings: The configuration.
        resume: Resume from the last checkpoint in the run's folder; "auto" starts a new run if there is none.
        console: Console for the progress.
        overwrite: Start a new run even if the folder has checkpoints, and remove them; UserError otherwise.
        began: time.time() at the start of the program, or now; requests to stop from then on are for this run.
    """
    folder, began = Path(settings.out), job_start_time(began)
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
    change = None
    if resumed and ranks.leads:
        change = describe_change(load_config(folder / CONFIG), settings, resumed, run.steps_per_epoch)
        if change:
            run.console.print(change, highlight=False, soft_wrap=True, markup=False)
    board = None
    if ranks.leads:
        if settings.tensorboard:  # first, since its library may be missing: nothing is removed yet
            board = open_tensorboard(folder, resumed)
        with reporting_write_errors(
            folder, "nothing is trained yet" if start < 0 else "nothing is trained since the last checkpoint"
        ):
            if start < 0:
                checkpoints.clear(folder / CHECKPOINTS)
            if start < 0 or change:
                (folder / "summary.json").unlink(missing_ok=True)  # it may say that the run is finished
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
    about = run_facts(run)
    if ranks.leads:
        write_summary(folder, about)


def _step_to_resume(settings: TrainSettings, folder: Path, resume: bool | str, overwrite: bool) -> int:
    """Step of the checkpoint to resume, -1 for a new run; UserError if it is missing or a new run would remove it."""
    step = checkpoints.last_step(folder / CHECKPOINTS)
    if not resume or (resume == AUTO and step is None):
        there = existing_run_message(folder)
        if there and not overwrite:
            raise UserError(there)
        return -1
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"nothing to resume: {path} is missing")
    before = load_config(path)
    if step is not None and settings.init and settings.init != before.init:
        cure = f"give --init {before.init}, as the run began" if before.init else "leave init out"
        raise UserError(
            f"init = {settings.init}: {folder} has a checkpoint at step {step}, from which --resume takes the weights; "
            f"{cure}, or begin anew with --overwrite"
        )
    changed = changes_besides_epochs(before, settings)
    if changed:
        raise UserError(f"cannot resume {folder} with other settings: {'; '.join(changed)}")
    if step is None:
        raise UserError(
            f"nothing to resume: {folder / CHECKPOINTS} has no checkpoint (step-*.json with its step-*.ckpt)"
        )
    if settings.epochs != before.epochs:
        check_epochs(settings, checkpoints.position_at(folder / CHECKPOINTS, step))
    return step


def existing_run_message(folder: Path) -> str | None:
    """The error message for a new run in a folder that has checkpoints of another run; None if it has none."""
    step, best = checkpoints.last_step(folder / CHECKPOINTS), checkpoints.best_of(folder / CHECKPOINTS)
    if step is not None:
        cures = "go on with --resume, begin anew with --overwrite, or choose another --out"
        return f"{folder} holds a run at step {step}: {cures}"
    if best.is_file():
        return (
            f"{best} is the only checkpoint there; --resume cannot go on from it, and a new run would remove it: "
            f"choose another --out, or begin anew with --overwrite"
        )
    return None


def _prepare(
    settings: TrainSettings, folder: Path, device: str, ranks: Ranks, heart: Heart, console: Console, resumes: bool
) -> Run:
    """Build data, network and optimizer of a run."""
    parts = build(settings, device=device)
    steps = count_steps(settings, len(parts.feeds.train))
    check_fit(settings, parts.feeds, parts.network, parts.loss)
    console = console if ranks.leads else Console(quiet=True)
    if settings.init and not resumes:
        _start_from(settings.init, parts, console)
    if settings.optimizer != "thor":
        make_convolutions_fast(parts.network)
    blocks = load_block_plan(folder) if resumes and chooses_block_plan(settings) else None
    stepper = build_stepper(settings, parts.network, parts.loss, steps, blocks)
    evaluator = Evaluator(parts.network, parts.loss, parts.feeds.test, settings, ranks)
    average = WeightAverage(parts.network, settings.ema, settings.mode == "graph") if settings.ema else None
    return Run(settings, folder, ranks, heart, device, parts.feeds, parts.network, stepper, evaluator, average, console)


def _start_from(init: str, parts: Parts, console: Console) -> None:
    """Take the weights of the setting `init`, and show what fitted."""
    fitted = take_weights(init, parts.network)
    lines, words = fitted.lines(), load_vocabulary(fitted.path.parent.parent)
    if words is not None and parts.feeds.words is not None and words.text() != parts.feeds.words.text():
        lines.append("init: trained with another vocabulary: the same row of an embedding is another word piece there")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


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
        if run.position.evaluated != run.position.step:  # a run that was cut short to the epochs that it has
            _evaluate_within(run, recorder, display)
    run.finished = True


def _epoch(run: Run, recorder: Recorder, display: ProgressDisplay, interrupt: Interrupt) -> bool:
    """Train the remaining steps of the current epoch; False if the user ended the run."""
    settings, epoch = run.settings, run.position.epoch
    decided = len(run.stepper.history())
    if evaluation_is_due(run):  # the run was ended just before this evaluation
        _evaluate_within(run, recorder, display)
    if run.position.step_in_epoch == run.steps_per_epoch:  # or just before the evaluation of the epoch
        return True
    run.heart.beat(run.position.step, heartbeat.DATA)
    batches = run.phases.timed("data", run.feeds.train.epoch(epoch, run.position.step_in_epoch))
    waiting_since = time.perf_counter()
    for batch in batches:
        run.heart.beat(run.position.step, heartbeat.STEP)
        phase, compiled = run.stepper.phase(), CompiledFunction.seconds
        begin = time.perf_counter()
        inputs = [Tensor(part) for part in batch[:-1]]
        target = inputs[0] if settings.reconstructs else Tensor(batch[-1])
        loss = float(run.stepper.step(*inputs, target).asnumpy())
        loss, asked = run.ranks.agree(loss, interrupt.requested or run.heart.orphaned)
        seconds = time.perf_counter() - begin
        run.phases.add(phase, seconds, CompiledFunction.seconds - compiled)
        run.position = advanced(run.position, loss, seconds, settings.accumulation)
        step, whole = run.position.step, run.position.step % settings.accumulation == 0
        if run.average and whole:
            with run.phases.measure("average"):
                run.average.update(step // settings.accumulation - 1)
        decided = record_step(run, recorder, loss, seconds, decided)
        rate = settings.batch_size / (time.perf_counter() - waiting_since)  # includes the time to load the data
        display.step(step, epoch + 1, loss, 1e3 * seconds, rate)
        evaluates = evaluation_is_due(run)
        if whole and (asked or evaluates or due(step, settings.checkpoint_every, settings.accumulation)):
            save_run(run, recorder)  # before an evaluation, which may be too long for whoever ends the run
        if asked and whole:
            return False
        if evaluates:
            _evaluate_within(run, recorder, display)
        if run.position.step_in_epoch == run.steps_per_epoch:
            break
        run.heart.beat(step, heartbeat.DATA)
        waiting_since = time.perf_counter()
    return True


def _evaluate_within(run: Run, recorder: Recorder, display: ProgressDisplay) -> None:
    """Evaluate within an epoch, and save a checkpoint, which may be the best."""
    scores, position = evaluate(run), run.position
    epoch = round(position.step / run.steps_per_epoch, 4)
    recorder.evaluation(step=position.step, epoch=epoch, **scores.named(), **times_so_far(run))
    save_run(run, recorder)
    display.evaluation(position.step, scores.metric)


def _end_of_epoch(run: Run, recorder: Recorder, display: ProgressDisplay) -> None:
    """Evaluate, record the epoch, and save a checkpoint."""
    settings, epoch = run.settings, run.position.epoch + 1
    evaluated = evaluates_after(settings, epoch)
    if evaluated and run.saved != run.position.step:
        save_run(run, recorder)  # the evaluation may be too long for whoever has asked the run to end
    finite = run.position.step_in_epoch - run.position.not_finite
    train_loss = run.position.loss_sum / finite if finite else math.nan
    position = replace(run.position, epoch=epoch, step_in_epoch=0, loss_sum=0.0, not_finite=0, seed=settings.seed)
    run.position = position
    scores = evaluate(run) if evaluated else None
    recorder.epoch(
        step=position.step,
        epoch=position.epoch,
        train_loss=train_loss,
        **(scores.named() if scores else {}),
        **times_so_far(run),
    )
    save_run(run, recorder)
    display.epoch(position.epoch, train_loss, scores.metric if scores else None, position.seconds)
