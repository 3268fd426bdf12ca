"""What the sub-commands share: the console, errors in one line, progress, and what an interrupt keeps."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from thor.profile.profile_file import Profile
from thor.runtime.errors import UserError

console = Console()


INTERRUPTED = 130


def _say(text: str) -> None:
    """One line as it is: paths may hold what rich takes for markup, and are not to be wrapped."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """One line for what the user can mend, no traceback."""
    try:
        yield
    except (
        UserError,
        ValueError,
        TypeError,
        MemoryError,
        FloatingPointError,
        OSError,
    ) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


@contextmanager
def _interruptible() -> Iterator[None]:
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


class _Saver:
    """Writes the growing profile, at most every few seconds."""

    def __init__(self, path: Path | None, every: float = 5.0):
        self.path, self.every = path, every
        self.last = 0.0
        self.waiting: Profile | None = None

    def __call__(self, current: Profile) -> None:
        self.waiting = current
        if time.monotonic() - self.last >= self.every:
            self.flush()

    def flush(self) -> None:
        if self.path is not None and self.waiting is not None:
            self.waiting.save(self.path)
            self.last, self.waiting = time.monotonic(), None


class _Bars:
    """One live bar for the stage at hand, with the time that is left; one line a stage where nobody watches."""

    def __init__(self) -> None:
        self.progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, transient=True,
            disable=not sys.stdout.isatty(),
        )  # fmt: skip
        self.current: TaskID | None = None

    def __enter__(self) -> _Bars:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def stage(self, name: str, total: float) -> None:
        if self.current is not None:
            self.progress.remove_task(self.current)
        if self.progress.disable:
            console.print(f"{name} ...")
        self.current = self.progress.add_task(name, total=total)

    def advance(self, amount: float) -> None:
        if self.current is not None:
            self.progress.advance(self.current, amount)
