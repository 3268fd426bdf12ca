"""Helpers shared by the commands: the console, errors in one line, progress, and what an interrupt keeps."""

from __future__ import annotations

import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from thor.profile.profile_file import Profile
from thor.runtime.errors import UserError

console = Console()

USAGE_ERROR = 2
INTERRUPTED = 130  # as a shell reports Ctrl-C


def say(text: str, style: str | None = None, *, wrap: bool = False) -> None:
    """Print a text literally: brackets in paths are no markup. A long line is not wrapped unless told."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=not wrap)


def clear_errors(command: Callable[..., None]) -> Callable[..., None]:
    """A command that answers errors a user can mend with one line and exit status 2, without a traceback."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except (UserError, ValueError, TypeError, MemoryError, FloatingPointError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(USAGE_ERROR) from error

    return run


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C, and a SIGTERM, raise KeyboardInterrupt.

    MindSpore takes SIGINT for itself once it has run an operator, and answers it by sending its own process a SIGTERM,
    which would end it without a word.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python


class ProfileSaver:
    """Writes the growing profile to a file, at most every few seconds; without a path it writes nothing."""

    def __init__(self, path: Path | None, every: float = 5.0):
        self.path, self.every = path, every
        self.last = 0.0
        self.waiting: Profile | None = None

    def __call__(self, current: Profile) -> None:
        self.waiting = current
        if time.monotonic() - self.last >= self.every:
            self.flush()

    def flush(self) -> None:
        """Write what has not been written yet."""
        if self.path is not None and self.waiting is not None:
            self.waiting.save(self.path)
            self.last, self.waiting = time.monotonic(), None


class ProgressBars:
    """A live bar for the current stage with the time left; where output is no terminal, one line a stage."""

    def __init__(self) -> None:
        self.progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, transient=True,
            disable=not sys.stdout.isatty(),
        )  # fmt: skip
        self.current: TaskID | None = None

    def __enter__(self) -> ProgressBars:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def stage(self, name: str, total: float) -> None:
        """Start a stage of ``total`` units of work."""
        if self.current is not None:
            self.progress.remove_task(self.current)
        if self.progress.disable:
            console.print(f"{name} ...")
        self.current = self.progress.add_task(name, total=total)

    def advance(self, amount: float) -> None:
        """So much of the stage is done."""
        if self.current is not None:
            self.progress.advance(self.current, amount)
