"""``thor profile``, ``thor show`` and ``thor choose``: a block size from measured curves.

MindSpore takes long to import, therefore only functions that measure import it, and what needs it: help and a wrong
option are answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from thor.cli import arguments
from thor.cli.terminal import INTERRUPTED, ProfileSaver, ProgressBars, console, interruptible, say
from thor.curvature.method_names import EIGENBASIS, EIGH
from thor.profile import crossing, report
from thor.profile.profile_file import Profile
from thor.runtime.errors import UserError, message_of
from thor.runtime.memory import available_memory

if TYPE_CHECKING:
    from thor.profile.measure import Task

GIB = 2**30
DEFAULT_CLASSES = 10  # of synthetic labels


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """What ``thor profile`` is told.

    Args:
        network: the network's ``module:callable``.
        out: where the profile goes; None writes nothing.
        input: shape of a synthetic batch, as text.
        classes: number of classes of labels; passed on to the network as ``num_classes``.
        data: ``fashion-mnist``, or ``module:callable`` of batches (x, y); None for synthetic ones.
        batch_size: examples in a batch of Fashion-MNIST.
        batches: number of batches that factors are averaged over.
        loss: ``cross-entropy``, ``squared-error`` or ``module:callable``.
        device_name: CPU, GPU, Ascend or auto.
        dims: block sizes to try, as text; None for powers of two.
        threshold: spectral loss below which a factor counts as kept.
        rank: number of directions of the split block+rank.
        damping: damping with which directions are compared.
        interval: steps from one refresh to the next, for the cost per step.
        budget: seconds that a refresh may take, for the per-layer plan.
        skip: regular expressions on names of layers to leave out.
        memory: GiB that the profiler may hold; None for half of what is free.
        inverse: lapack, cholesky or newton-schulz; None for what suits the device.
        precondition: inverse or eigenbasis: what is measured.
        seed: seed of synthetic data, initial weights and sampling.
        fresh: True to overwrite what ``out`` holds.
    """

    network: str
    out: Path | None
    input: str | None
    classes: int | None
    data: str | None
    batch_size: int
    batches: int
    loss: str
    device_name: str
    dims: str | None
    threshold: float
    rank: int
    damping: float
    interval: int
    budget: float
    skip: list[str] | None
    memory: float | None
    inverse: str | None
    precondition: Literal["inverse", "eigenbasis"]
    seed: int
    fresh: bool

    def __post_init__(self) -> None:
        if self.out is not None:
            arguments.profile_with_picture("--out", self.out)
        arguments.share("--threshold", self.threshold)
        arguments.positive("--damping", self.damping)
        arguments.budget("--budget", self.budget)
        if self.memory is not None:
            arguments.positive("--memory", self.memory)
        if self.precondition == EIGENBASIS and self.inverse is not None:
            raise UserError(
                f"--inverse {self.inverse}: with --precondition eigenbasis nothing is inverted: leave one of them out"
            )
        self.shape()
        self.block_sizes()

    def shape(self) -> tuple[int, ...] | None:
        """The shape of a synthetic batch."""
        return None if self.input is None else arguments.shape("--input", self.input)

    def block_sizes(self) -> list[int] | None:
        """The block sizes to try; None for the profiler's own."""
        return None if self.dims is None else arguments.block_sizes("--dims", self.dims)

    def held_bytes(self) -> int:
        """How many bytes the profiler may hold."""
        return available_memory() // 2 if self.memory is None else int(self.memory * GIB)

    def description(self, source: str) -> dict[str, Any]:
        """What the profile's file says of the network and of data from ``source``."""
        batch_size = self.batch_size if self.data else (self.shape() or (0,))[0]
        return {"network": self.network, "source": source, "input": self.input, "batches": self.batches,
                "seed": self.seed, "loss": self.loss, "classes": self.classes, "batch_size": batch_size}  # fmt: skip

    @cached_property
    def loss_fn(self) -> Callable[..., Any]:
        """The loss, made of its name once."""
        from thor.cli.network_argument import build_loss

        return build_loss(self.loss)

    def task(self) -> Task:
        """What to measure: the network, its data and its loss, made from their names."""
        from thor.cli import network_argument
        from thor.profile.gather import loss_of
        from thor.profile.measure import Task

        net = network_argument.build_network(self.network, self.classes)
        source, batches = network_argument.build_batches(
            self.data, self.shape(), self.classes or DEFAULT_CLASSES, self.batches, self.batch_size,
            self.loss == "squared-error", self.seed,
        )  # fmt: skip
        return Task(
            net=net, forward=loss_of(net, self.loss_fn), batches=batches, dims=self.block_sizes(),
            threshold=self.threshold, rank=self.rank, damping=self.damping, skip=tuple(self.skip or ()),
            memory=self.held_bytes(), inverse=EIGH if self.precondition == EIGENBASIS else self.inverse,
            describe=self.description(source),
        )  # fmt: skip


def profile(
    network: Annotated[str, typer.Argument(help="module:callable, as in models.resnet:resnet50")],
    out: Annotated[Path | None, typer.Option(help="where the profile goes; its picture beside it as .png")] = None,
    input: Annotated[str | None, typer.Option(help="shape of a synthetic batch, as in 8,3,224,224")] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="classes of labels; passed on as num_classes")] = None,
    data: Annotated[str | None, typer.Option(help="fashion-mnist, or module:callable of (x, y) batches")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="of --data fashion-mnist")] = 128,
    batches: Annotated[int, typer.Option(min=1, help="batches that factors are averaged over")] = 1,
    loss: Annotated[
        str,
        typer.Option(help="cross-entropy, squared-error (to the input, or to targets of --data), or module:callable"),
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
    precondition: Annotated[
        Literal["inverse", "eigenbasis"], typer.Option(help="what is measured: inverses, or eigenbases")
    ] = "inverse",
    seed: Annotated[int, typer.Option(help="of synthetic data, initial weights and sampling")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure anew where --out has a profile already")] = False,
) -> None:  # fmt: skip
    """Measure a network's block sizes on a device, and choose one."""
    settings = ProfileSettings(**locals())
    unfinished = _unfinished(settings.out, settings.fresh)
    name = _start_device(settings)
    task = settings.task()
    _check_batches(task, settings.batches)
    _try_network(task, settings.loss_fn)
    say(f"profiling {settings.network} on {name}; at most {task.memory / GIB:.1f} GiB held")
    found = _measure(task, settings.out, unfinished, settings.fresh)
    report.show(found, console, settings.interval, settings.budget)
    if settings.out is not None:
        picture = _draw(found, settings.out)
        say(f"wrote {settings.out} and {picture}")


def _unfinished(out: Path | None, fresh: bool) -> Profile | None:
    """The interrupted profile in ``out`` to go on from; an error where it holds a complete one, or something else."""
    if out is None or fresh or not out.exists():
        return None
    try:
        found = Profile.load(out, partial=True)
    except ValueError as error:
        raise UserError(f"{error} (give --fresh to overwrite it, or another --out)") from error
    if found.complete:
        about = found.settings.get("network", "a network")
        raise UserError(
            f"--out {out}: holds a complete profile of {about}, which thor show prints; give --fresh to measure anew, "
            f"or another --out"
        )
    say(f"going on from {out}: {len(found.calls)} times and {len(found.layers)} layers are there")
    return found


def _start_device(settings: ProfileSettings) -> str:
    """Select the device and seed MindSpore; the device's name."""
    import mindspore as ms

    from thor.runtime import device

    name = device.select(settings.device_name)
    ms.set_seed(settings.seed)
    return name


def _check_batches(task: Task, asked: int) -> None:
    """Raise where the data has fewer batches than asked for: the report would name batches that were not averaged."""
    there = sum(1 for _ in islice(task.batches(), asked))
    if there == 0:
        raise UserError("the data has no batch (is --batch-size larger than the data?)")
    if there < asked:
        raise UserError(f"--batches {asked}: the data has {there} only")


def _try_network(task: Task, loss_fn: Callable[..., Any]) -> None:
    """One forward pass up to the loss, so that a wrong shape is reported before anything is measured."""
    *inputs, targets = next(task.batches())
    task.net.set_train(False)  # normalisation layers keep their statistics
    shapes = " and ".join(str(tuple(item.shape)) for item in inputs)
    output = _computed(partial(task.net, *inputs), f"the network does not take an input of shape {shapes}")
    if hasattr(output, "shape"):
        refusal = (
            f"the loss does not take outputs of shape {output.shape} with targets of shape "
            f"{tuple(targets.shape)} (see --loss and --classes)"
        )
    else:
        found = f"{len(output)} outputs" if isinstance(output, (tuple, list)) else f"a {type(output).__name__}"
        refusal = (
            f"the network returns {found}, and the loss takes one tensor: profile a Cell that returns only the "
            f"output to train on, or give --loss module:callable that takes what it returns"
        )
    _computed(partial(loss_fn, output, targets), refusal)


def _computed(compute: Callable[[], Any], refusal: str) -> Any:
    """A computed output; whatever goes wrong is a UserError with ``refusal`` and MindSpore's message.

    MindSpore may raise only where a value is asked for, therefore values are.
    """
    try:
        output = compute()
        for value in output if isinstance(output, (tuple, list)) else (output,):
            if hasattr(value, "asnumpy"):
                value.asnumpy()
    except Exception as error:
        raise UserError(f"{refusal}; it says:\n{message_of(error)}") from error
    return output


def _measure(task: Task, out: Path | None, unfinished: Profile | None, fresh: bool) -> Profile:
    """Measure with progress bars; an interrupt keeps what was measured."""
    from thor.profile.measure import measure

    saved = ProfileSaver(out)
    try:
        with interruptible(), ProgressBars() as bars:
            found = measure(task, resume=unfinished, progress=bars, save=saved)
    except KeyboardInterrupt:
        saved.flush()
        hint = "nothing was measured yet" if out else "nothing is kept; give --out to go on from an interrupt"
        if out is not None and (saved.last or unfinished is not None):
            command = "the same command without --fresh" if fresh else "the same command"
            hint = f"what was measured is in {out}; {command} goes on from there"
        typer.echo(f"interrupted: {hint}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    saved.flush()
    return found


def _draw(found: Profile, path: Path) -> Path:
    """Draw the picture of the profile in ``path``; the picture's path."""
    picture = path.with_suffix(".png")
    report.draw(found, picture)
    return picture


def show(
    path: Annotated[Path, typer.Argument(help="a profile that thor profile wrote")],
    interval: Annotated[int, typer.Option(min=1, help="steps between refreshes, for the cost per step")] = 100,
    budget: Annotated[float, typer.Option(help="seconds a refresh may take, for the per-layer plan")] = float("inf"),
    threshold: Annotated[float | None, typer.Option(help="another loss threshold than the profile's")] = None,
) -> None:  # fmt: skip
    """Print a profile's table and draw its picture again."""
    arguments.budget("--budget", budget)
    found = Profile.load(path)
    if threshold is not None:
        found.threshold = arguments.share("--threshold", threshold)
    report.show(found, console, interval, budget)
    say(f"wrote {_draw(found, path)}")


def choose(
    path: Annotated[Path, typer.Argument(help="CSV with the columns dim, kept, and time (or performance)")],
) -> None:
    """Choose a block size from curves that were measured elsewhere."""
    found = crossing.choose(*crossing.read_curves(path))
    if found.dim is None:
        say(f"block size {found.chosen}: {found.reason}")
    else:
        say(f"block size {found.chosen}: the curves cross at ({found.dim:.0f}, {found.share:.2f})")
