"""The sub-commands of ``thor``."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from first_order.checks import number
from thor.cli import network_argument
from thor.cli.doctor import doctor_command
from thor.cli.plan import plan_command
from thor.cli.terminal import INTERRUPTED, _Bars, _clear_errors, _interruptible, _Saver, _say, console
from thor.profile import report
from thor.profile.crossing import check_candidates, choose, read_curves
from thor.profile.measure import Task, measure
from thor.profile.profile_file import Profile
from thor.runtime import device
from thor.runtime.errors import UserError, message_of
from thor.runtime.memory import available_memory

app = typer.Typer(
    help="Second-order optimization for MindSpore: choose THOR's block size by measuring.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip


@app.callback()
def root() -> None:
    """Keep sub-commands even when there is one."""


@app.command()
def profile(
    network: Annotated[str, typer.Argument(help="module:callable, as in models.resnet:resnet50")],
    out: Annotated[Path | None, typer.Option(help="where the profile goes; its picture beside it as .png")] = None,
    input: Annotated[str | None, typer.Option(help="shape of a synthetic batch, as in 8,3,224,224")] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="classes of labels; passed on as num_classes")] = None,
    data: Annotated[str | None, typer.Option(help="fashion-mnist, or module:callable of (x, y) batches")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="of --data fashion-mnist")] = 128,
    batches: Annotated[int, typer.Option(min=1, help="batches that factors are averaged over")] = 1,
    loss: Annotated[
        str, typer.Option(help="cross-entropy, squared-error (to the input, but for own data), or module:callable")
    ] = "cross-entropy",
    device_name: Annotated[str, typer.Option("--device", help="CPU, GPU, Ascend or auto")] = "auto",
    dims: Annotated[str | None, typer.Option(help="block sizes to try, as in 1,16,32,64")] = None,
    threshold: Annotated[float, typer.Option(help="spectral loss below which a factor counts as kept")] = 0.01,
    rank: Annotated[int, typer.Option(min=1, help="directions of the split block+rank")] = 16,
    damping: Annotated[float, typer.Option(help="with which directions are compared")] = 0.03,
    interval: Annotated[int, typer.Option(min=1, help="steps between refreshes, for the cost per step")] = 100,
    budget: Annotated[float, typer.Option(help="seconds a refresh may take, for the per-layer plan")] = float("inf"),
    skip: Annotated[list[str] | None, typer.Option(help="regular expression on layer names to leave out")] = None,
    memory: Annotated[float | None, typer.Option(help="GiB that the profiler may hold; half of what is free")] = None,
    inverse: Annotated[str | None, typer.Option(help="lapack, cholesky or newton-schulz")] = None,
    seed: Annotated[int, typer.Option(help="of synthetic data, initial weights and sampling")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure anew where --out has a profile already")] = False,
) -> None:  # fmt: skip
    """Measure a network's block sizes on a device, and choose one."""
    with _clear_errors():
        import mindspore as ms

        _check_options(out, threshold, damping, budget)
        if memory is not None:
            number("--memory", memory, 0.0, open_low=True)
        resume = _to_go_on_from(out, fresh)
        name = device.select(device_name)
        ms.set_seed(seed)
        shape = network_argument.parse_shape(input) if input is not None else None
        candidates = _parse_dims(dims)
        net = network_argument.build_network(network, classes)
        source, stream = network_argument.build_batches(
            data, shape, classes or 10, batches, batch_size, loss == "squared-error", seed
        )
        describe = {"network": network, "source": source, "input": input, "batches": batches, "seed": seed,
                    "loss": loss, "classes": classes,
                    "batch_size": batch_size if data else (shape or (0,))[0]}  # fmt: skip
        task = Task(
            net=net, loss_fn=network_argument.build_loss(loss), batches=stream, dims=candidates, threshold=threshold,
            rank=rank, damping=damping, skip=tuple(skip or ()), inverse=inverse, describe=describe,
            memory=int(memory * 2**30) if memory is not None else available_memory() // 2,
        )  # fmt: skip
        _count_batches(task, batches)
        _try_network(net, task)
        _say(f"profiling {network} on {name}; at most {task.memory / 2**30:.1f} GiB held")
        result = _measure(task, out, resume)
        report.show(result, console, interval, budget)
        if out is not None:
            _draw(result, out)


def _check_options(out: Path | None, threshold: float, damping: float, budget: float) -> None:
    """Refuse before anything is measured."""
    if out is not None and out.suffix == ".png":
        raise UserError(f"--out {out}: the picture is written beside the profile; give a name that ends in .json")
    _check_share("--threshold", threshold)
    number("--damping", damping, 0.0, open_low=True)
    _check_budget(budget)


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise UserError(f"{name} must lie between 0 and 1, but got {value}")


def _check_budget(budget: float) -> None:
    if not budget > 0:
        raise UserError(f"--budget must be greater than 0 seconds, but got {budget}")


def _parse_dims(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return check_candidates([int(part) for part in text.split(",")])
    except ValueError:
        raise UserError(f"--dims {text!r}: give at least two different positive integers, as in 1,16,32,64") from None


def _count_batches(task: Task, asked: int) -> None:
    """Refuse data that run out: the report would tell of batches that nothing was averaged over."""
    there = sum(1 for _ in islice(task.batches(), asked))
    if 0 < there < asked:
        raise UserError(f"--batches {asked}: the data has {there} only")


def _try_network(net: Any, task: Task) -> None:
    """One forward pass, so that a wrong shape is reported before anything is measured."""
    inputs = next(task.batches(), None)
    if inputs is None:
        raise UserError("the data has no batch (is --batch-size larger than the data?)")
    net.set_train(False)  # normalisation layers keep their statistics
    try:
        output = _computed(net(*inputs[:-1]) if task.loss_fn is not None else net(*inputs))
    except Exception as error:
        shapes = " and ".join(str(tuple(item.shape)) for item in inputs[:-1])
        raise UserError(
            f"the network does not take an input of shape {shapes}; it says:\n{message_of(error)}"
        ) from error
    try:
        if task.loss_fn is not None:
            _computed(task.loss_fn(output, inputs[-1]))
    except Exception as error:
        raise UserError(
            f"the loss does not take outputs of shape {getattr(output, 'shape', type(output).__name__)} with targets "
            f"of shape {tuple(inputs[-1].shape)} (see --loss and --classes); it says:\n{message_of(error)}"
        ) from error


def _computed(output: Any) -> Any:
    """Wait for a result: MindSpore may raise only where a value is asked for."""
    for value in output if isinstance(output, (tuple, list)) else (output,):
        value.asnumpy()
    return output


def _to_go_on_from(out: Path | None, fresh: bool) -> Profile | None:
    """An interrupted profile; an error where there is a complete one, or something else."""
    if out is None or fresh or not out.exists():
        return None
    try:
        found = Profile.load(out, partial=True)
    except ValueError as error:
        raise ValueError(f"{error} (give --fresh to overwrite it, or another --out)") from error
    if found.complete:
        about = found.settings.get("network", "a network")
        raise UserError(
            f"--out {out}: holds a complete profile of {about}, which thor show prints; give --fresh to measure anew, "
            f"or another --out"
        )
    _say(f"going on from {out}: {len(found.calls)} times and {len(found.layers)} layers are there")
    return found


def _measure(task: Task, out: Path | None, resume: Profile | None) -> Profile:
    """Measure with progress bars; an interrupt keeps what was measured."""
    saved = _Saver(out)
    try:
        with _interruptible(), _Bars() as bars:
            result = measure(task, resume=resume, progress=bars, save=saved)
    except KeyboardInterrupt:
        saved.flush()
        hint = "nothing was measured yet" if out else "nothing is kept; give --out to go on from an interrupt"
        if out is not None and saved.last:
            hint = f"what was measured is in {out}; the same command goes on from there"
        typer.echo(f"interrupted: {hint}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    saved.flush()
    return result


def _draw(result: Profile, out: Path) -> None:
    picture = out.with_suffix(".png")
    report.draw(result, picture)
    _say(f"wrote {out} and {picture}")


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="a profile that thor profile wrote")],
    interval: Annotated[int, typer.Option(min=1, help="steps between refreshes, for the cost per step")] = 100,
    budget: Annotated[float, typer.Option(help="seconds a refresh may take, for the per-layer plan")] = float("inf"),
    threshold: Annotated[float | None, typer.Option(help="another loss threshold than the profile's")] = None,
) -> None:  # fmt: skip
    """Print a profile's table and draw its picture again."""
    with _clear_errors():
        _check_budget(budget)
        result = Profile.load(path)
        if threshold is not None:
            _check_share("--threshold", threshold)
            result.threshold = threshold
        report.show(result, console, interval, budget)
        report.draw(result, path.with_suffix(".png"))
        _say(f"wrote {path.with_suffix('.png')}")


@app.command("choose")
def choose_command(
    path: Annotated[Path, typer.Argument(help="CSV with the columns dim, kept, and time (or performance)")],
) -> None:
    """Choose a block size from curves that were measured elsewhere."""
    with _clear_errors():
        crossing = choose(*read_curves(path))
        if crossing.dim is None:
            _say(f"block size {crossing.chosen}: {crossing.reason}")
        else:
            _say(f"block size {crossing.chosen}: the curves cross at ({crossing.dim:.0f}, {crossing.share:.2f})")


@app.command("report")
def report_command(
    run: Annotated[Path, typer.Argument(help="folder of a training run, with its metrics.jsonl")],
    out: Annotated[Path | None, typer.Option(help="where the page goes; report.html in the folder")] = None,
) -> None:
    """Make one HTML page of a run: curves, refresh decisions, time, memory, configuration."""
    with _clear_errors():
        from thor.report import html

        _say(f"wrote {html.write(run, out)}")


app.command("plan")(_clear_errors()(plan_command))
app.command("doctor")(doctor_command)
