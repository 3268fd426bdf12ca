"""Requests to end a run early: Ctrl-C, SIGTERM, or a file called `stop` in its folder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

STOP_FILE = "stop"
STOPPED_FILE = "stopped"  # name of the stop file after the run has ended
BEGAN = "THOR_JOB_BEGAN"  # environment: time.time() at the start of a launcher, which may start a run several times
CLOCK_LAG = 0.05  # seconds: bounds how far a file's time, which is that of the kernel's last tick, lags time.time()


def job_start_time(program: float | None = None) -> float:
    """Start time of the job, or without a launcher that of the program, or now.

    A request made during an attempt of a job holds for the next.
    """
    return float(os.environ.get(BEGAN, time.time() if program is None else program))


class Interrupt:
    """Tells whether the run has been asked to end.

    Args:
        folder: The run's folder, in which the stop file is looked for.
        began: Start of the run, as time.time(). An older stop file is left from an earlier run and is removed; a newer
            one is for this run, even while it starts up.
        leads: True for the rank that removes and renames the stop file.
    """

    def __init__(self, folder: Path, began: float, leads: bool = True) -> None:
        self.signalled = False
        self._leads = leads
        self._file = folder / STOP_FILE
        if leads:
            with suppress(FileNotFoundError):
                if self._file.stat().st_mtime < began - CLOCK_LAG:
                    self._file.unlink()
            (folder / STOPPED_FILE).unlink(missing_ok=True)

    @property
    def requested(self) -> bool:
        """True after a request. Each access looks for the stop file."""
        return self.signalled or self._file.exists()

    def done(self) -> None:
        """Rename the stop file after the run has ended early, so that the resumed run does not end at once."""
        if self._leads:
            with suppress(FileNotFoundError):
                self._file.replace(self._file.with_name(STOPPED_FILE))


def stopped_by_file(folder: Path) -> bool:
    """True if a stop file ended the folder's last run; for the rank that leads."""
    return (folder / STOPPED_FILE).is_file()


@contextmanager
def watch_stop_requests(folder: Path, began: float, leads: bool = True) -> Iterator[Interrupt]:
    """In the enclosed block, SIGINT and SIGTERM only set a stop request; a second SIGINT raises KeyboardInterrupt."""
    interrupt = Interrupt(folder, began, leads)

    def ask(number: int, frame: FrameType | None) -> None:
        if interrupt.signalled and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.signalled = True

    with handling_signals(ask):
        yield interrupt


@contextmanager
def handling_signals(ask: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """In the enclosed block, SIGINT and SIGTERM call `ask`; the previous handlers return after it."""
    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
