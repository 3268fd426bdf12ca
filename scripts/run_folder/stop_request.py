"""How a run is asked to end: Ctrl-C, SIGTERM, or a file called `stop` in its folder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

STOP_FILE = "stop"
STOPPED_FILE = "stopped"  # what becomes of it in the end
BEGAN = "THOR_JOB_BEGAN"  # time.time() of a launcher, which may start a run several times
CLOCK_LAG = 0.05  # seconds: bounds how far a file's time, which is that of the kernel's last tick, lags time.time()


def job_start_time() -> float:
    """When this run began, or the job that it belongs to: a request of a dying attempt's time is for the next one."""
    return float(os.environ.get(BEGAN, time.time()))


class Interrupt:
    """Whether somebody has asked the run to end; of a job's ranks, the first one `leads` and tidies up.

    A stop file from before ``began`` (time.time()) is what an earlier run has left, and is removed; a later one is
    meant for this run, though it may still be starting up.
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
        """True from the first request on. A stop file is looked for each time: that takes microseconds."""
        return self.signalled or self._file.exists()

    def done(self) -> None:
        """The run has ended early. The stop file gets another name, so that the continued run does not end at once."""
        if self._leads:
            with suppress(FileNotFoundError):
                self._file.replace(self._file.with_name(STOPPED_FILE))


def stopped_by_file(folder: Path) -> bool:
    """Whether the stop file was there when the folder's run ended early; asked by the rank that leads."""
    return (folder / STOPPED_FILE).is_file()


@contextmanager
def watch_stop_requests(folder: Path, began: float, leads: bool = True) -> Iterator[Interrupt]:
    """Within, SIGINT and SIGTERM only ask the loop to end after its step; a second SIGINT ends it at once."""
    interrupt = Interrupt(folder, began, leads)

    def ask(number: int, frame: FrameType | None) -> None:
        if interrupt.signalled and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.signalled = True

    with handling_signals(ask):
        yield interrupt


@contextmanager
def handling_signals(ask: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within, SIGINT and SIGTERM call `ask`."""
    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
