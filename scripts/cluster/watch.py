"""One attempt at a job on this host: start msrun, watch its processes, and end all of them when one fails.

By itself, msrun notices only a process that ends with an error status, reports it late, and names no cause. It notices
neither a process that hangs nor one that exits early with status 0. This module detects all of them, and ends the
job's processes at once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from scripts.cluster import causes, processes
from scripts.cluster.causes import Cause, Kind
from scripts.cluster.msrun import Job
from scripts.cluster.shown_log import ShownLog
from scripts.common.errors import INTERRUPTED, STOPPED, USAGE_ERROR
from scripts.run_folder import heartbeat
from scripts.run_folder.heartbeat import DONE, STARTING, Beat
from scripts.run_folder.stop_request import BEGAN

POLL = 0.25  # seconds between two looks at the processes
LEFT_EARLY = 3.0  # seconds in which msrun must log the status of a process that is gone; it polls once a second
_LOG_END = 2**18  # bytes at the end of a log that are searched for a cause
_MSRUN_STATUS = re.compile(r"Worker process (\d+) exit with exception\. Error code: (-?\d+)")


@dataclass(frozen=True)
class Limits:
    """Time limits, in seconds.

    Attributes:
        hang: From one heartbeat of a rank to the next; 0 for no limit.
        start: To the end of a rank's first step, including compilation; 0 for no limit.
        grace: From a request to end until all processes are killed.
    """

    hang: float = 600.0
    start: float = 1800.0
    grace: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        status: Exit status: 0; 1 for a failure; 2 for an error that the user must correct; 3 after the file `stop`; 130
            after a signal.
        message: The rank and the cause; empty after a success.
    """

    status: int
    message: str = ""


_BY_REQUEST = Outcome(INTERRUPTED, "ended by request")
_BY_FILE = Outcome(STOPPED, "ended by the file `stop` in the run's folder")


@dataclass
class Seen:
    """Observations of a job's ranks on this host, from which the outcome is derived.

    Attributes:
        statuses: Exit status of each rank that has ended with one other than 0.
        states: Last observed state of each rank: `alive`, `stopped` or `gone`.
        stopped: Ranks that were stopped by a signal when they were last seen; msrun may have killed them since.
        beats: The newest heartbeat of each rank.
        gone_since: Monotonic time at which each rank was first observed `gone`.
    """

    statuses: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    beats: dict[int, Beat] = field(default_factory=dict)
    gone_since: dict[int, float] = field(default_factory=dict)

    def note(self, rank: int, state: str, now: float) -> None:
        """Record the observed state of a rank."""
        self.states[rank] = state
        if state == "gone":
            self.gone_since.setdefault(rank, now)
        elif state == "stopped":
            self.stopped.add(rank)
        else:
            self.stopped.discard(rank)

    def where(self, rank: int) -> str:
        """The progress of a rank, in words."""
        return str(self.beats[rank]) if rank in self.beats else "before its first sign of life"

    def stuck(self, rank: int) -> str:
        """The reason why a rank makes no progress, in words."""
        return "is stopped by a signal (SIGSTOP)" if rank in self.stopped else "hangs"

    def behind(self) -> int | None:
        """The rank that the others wait for: one stopped by a signal, else the only one with the least progress."""
        if self.stopped:
            return min(self.stopped)
        progress = {rank: beat.progress for rank, beat in self.beats.items()}
        least = [rank for rank in progress if progress[rank] == min(progress.values())]
        return least[0] if len(least) == 1 < len(progress) else None


def failure(seen: Seen, log: Callable[[int], str]) -> tuple[int, Cause] | None:
    """The rank whose failure ended the others, and its cause; None while no rank has ended with an error status.

    Several ranks may have ended between two looks: one by its own failure, the others in a collective, because that
    rank was missing. msrun reports the status of only one rank; the causes of the others come from their logs.

    Args:
        seen: The observations.
        log: Returns the log of a rank.
    """
    if not seen.statuses:
        return None
    found: list[tuple[Kind, int, Cause]] = []
    for rank in sorted(seen.states.keys() | seen.statuses.keys()):
        if rank in seen.statuses or seen.states.get(rank) == "gone":
            cause = causes.of_process(seen.statuses.get(rank), log(rank))
            if cause is not None:
                found.append((cause.kind, rank, cause))
    kind, rank, cause = min(found, key=lambda item: item[:2])
    late = seen.behind()
    if kind is Kind.COLLECTIVE and late is not None and late != rank:
        return late, Cause(kind, f"{seen.stuck(late)}, and rank {rank} waited for it in vain: {cause.message}")
    if kind is Kind.COLLECTIVE:
        return rank, Cause(kind, f"waited in vain for another rank: {cause.message}")
    return rank, cause


def left_early(seen: Seen, now: float) -> int | None:
    """A rank that is gone without an error status although it had not finished, or None."""
    for rank, since in seen.gone_since.items():
        beat = seen.beats.get(rank)
        if rank not in seen.statuses and now - since > LEFT_EARLY and beat is not None and beat.doing != DONE:
            return rank
    return None


def hung(seen: Seen, started: float, now: float, limits: Limits) -> tuple[int, float] | None:
    """A rank without a heartbeat for longer than its limit, and the seconds since its last one; else None.

    If several ranks are silent, it is the one that the others wait for, else the one that is silent for longest.
    """
    silent = {}
    for rank in seen.states:
        beat = seen.beats.get(rank)
        if seen.states[rank] == "gone":
            continue
        age = now - (beat.at if beat is not None else started)
        limit = limits.start if beat is None or beat.doing == STARTING else limits.hang
        if limit and age > limit:
            silent[rank] = age
    if not silent:
        return None
    late = seen.behind()
    rank = late if late in silent else max(silent, key=lambda rank: silent[rank])
    return rank, silent[rank]


class Attempt:
    """One start of a job. Calling it runs the job and returns its outcome; all its processes have ended by then.

    Args:
        job: This host's part of the job.
        limits: Time limits.
        asked: Returns how often the job was asked to end.
        output: Where the output of this host's first rank goes.
    """

    def __init__(self, job: Job, limits: Limits, asked: Callable[[], int], output: IO[str] = sys.stdout) -> None:
        self._job = job
        self._limits = limits
        self._asked = asked
        self._output = ShownLog(output)
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._msrun_log = job.log_dir / "msrun.log"
        self._found: dict[str, psutil.Process] = {}
        self._seen = Seen()
        self._shown = 0  # bytes

    def __call__(self) -> Outcome:
        """Run the job until all its processes have ended, and return the outcome.

        Heartbeats are written in every step and use this host's clock. Therefore they go into a local temporary folder,
        not into the folder of the logs, which may be on a network.
        """
        self._prepare()
        with tempfile.TemporaryDirectory(prefix="thor-heartbeats-", ignore_cleanup_errors=True) as beats:
            return self._run(Path(beats))

    @property
    def begun(self) -> bool:
        """True unless the heartbeats of this host's ranks show that no step has been completed."""
        beats = self._seen.beats.values()
        return not beats or any(beat.step for beat in beats)

    def _run(self, beats: Path) -> Outcome:
        """Start msrun, watch it, and end all processes; `beats` is the folder for heartbeats."""
        environment = {
            **self._job.environment(os.environ),
            heartbeat.VARIABLE: str(beats.resolve()),
            BEGAN: str(self._job.began),
            processes.MARK: self._mark,
        }
        with self._msrun_log.open("w") as log:
            msrun = subprocess.Popen(
                self._job.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not reach msrun, which would kill all without a checkpoint
                preexec_fn=processes.end_with_parent,
            )
            try:
                outcome = self._watch(msrun, beats)
            finally:
                left = processes.kill_all(self._mark)
                msrun.wait()
        self._show()
        self._output.end(outcome.message)
        if left:
            return Outcome(1, f"{outcome.message}; {left} processes cannot be killed".lstrip("; "))
        return outcome

    def _prepare(self) -> None:
        """Create the folder of the logs, and remove the logs of an earlier attempt from it."""
        self._job.log_dir.mkdir(parents=True, exist_ok=True)
        for old in self._job.log_dir.glob("*.log"):
            old.unlink()

    def _watch(self, msrun: subprocess.Popen[bytes], beats: Path) -> Outcome:
        """Poll until there is an outcome; pass requests to end on to the workers."""
        started, asked_at = time.monotonic(), None
        passed_on = 0
        while True:
            status = msrun.poll()
            self._look(msrun.pid, beats)
            self._show()
            now = time.monotonic()
            asked = self._asked()
            if asked and asked_at is None:
                asked_at = now
            if asked > passed_on:
                passed_on = asked
                processes.ask_to_end([p for name, p in self._found.items() if name != "scheduler"])
            outcome = self._verdict(status, started, now, asked_at is not None)
            if outcome is not None:
                return outcome
            if asked > 1 or (asked_at is not None and now - asked_at > self._limits.grace):
                return Outcome(INTERRUPTED, "ended by request, without a last checkpoint")
            time.sleep(POLL)

    def _look(self, msrun: int, beats: Path) -> None:
        """Update the observations."""
        seen = self._seen
        if len(self._found) < self._job.devices + (self._job.node_rank == 0):
            self._found |= processes.roles(msrun)
        for name, process in self._found.items():
            if name != "scheduler":
                seen.note(int(name), processes.status(process), time.monotonic())
        seen.beats = heartbeat.read(beats)
        ranks = {process.pid: int(name) for name, process in self._found.items() if name != "scheduler"}
        for pid, status in _MSRUN_STATUS.findall(_text(self._msrun_log)):
            if int(pid) in ranks:
                seen.statuses[ranks[int(pid)]] = int(status)

    def _verdict(self, status: int | None, started: float, now: float, asked: bool) -> Outcome | None:
        """The outcome that follows from the observations, or None while the job goes on.

        Args:
            status: Exit status of msrun, None while it runs.
            started: Monotonic time of the start.
            now: Monotonic time.
            asked: True if the job was asked to end.
        """
        seen = self._seen
        failed = failure(seen, lambda rank: _text(self._log(rank)))
        if failed is not None:
            rank, cause = failed
            by_file = STOPPED in seen.statuses.values()
            ending = by_file or asked or INTERRUPTED in seen.statuses.values()
            if ending and (cause.kind > Kind.EXCEPTION or cause.message.startswith("KeyboardInterrupt")):
                return _BY_FILE if by_file else _BY_REQUEST
            must_mend = cause.kind is Kind.USER and USAGE_ERROR in seen.statuses.values()
            return Outcome(
                USAGE_ERROR if must_mend else 1,
                self._failure_line(rank, cause.message + self._others_with(rank, cause)),
            )
        if status == 0:
            return Outcome(0)
        if status is not None and asked:  # the signal has ended msrun too; the workers still finish their step
            return _BY_REQUEST if all(state == "gone" for state in seen.states.values()) else None
        if status is not None:
            return Outcome(1, f"msrun ended with status {status}: {self._last_words(self._msrun_log)}")
        early = left_early(seen, now)
        if early is not None:
            return Outcome(1, self._failure_line(early, "left early, with exit status 0"))
        late = hung(seen, started, now, self._limits)
        if late is not None:
            rank, age = late
            return Outcome(1, self._failure_line(rank, f"{seen.stuck(rank)}: no sign of life for {age:.0f} s"))
        scheduler = self._found.get("scheduler")
        gone = scheduler is not None and processes.status(scheduler) == "gone"
        if gone and not seen.gone_since and any(beat.doing != DONE for beat in seen.beats.values()):
            words, stuck = self._last_words(self._job.log_dir / "scheduler.log"), seen.behind()
            if stuck is not None:
                return Outcome(
                    1, self._failure_line(stuck, f"{seen.stuck(stuck)}, and the scheduler gave it up: {words}")
                )
            return Outcome(1, f"the scheduler has ended: {words}")
        return None

    def _failure_line(self, rank: int, cause: str) -> str:
        """The line that reports a failure."""
        return f"rank {rank} {self._seen.where(rank)}: {cause} [{self._log(rank)}]"

    def _others_with(self, rank: int, cause: Cause) -> str:
        """How many other ranks of this host ended with the same error, in words; empty if none did."""
        logs = [_text(self._log(other)) for other in self._job.ranks if other != rank]
        count = sum(causes.of_log(log) == cause for log in logs)
        return f" (and {count} other rank{'s' * (count > 1)} with the same error)" if count else ""

    def _log(self, rank: int) -> Path:
        return self._job.log_dir / f"worker_{rank}.log"

    def _last_words(self, path: Path) -> str:
        """The cause that a log shows, or its last line."""
        text = _text(path)
        cause = causes.of_log(text)
        lines = text.strip().splitlines()
        return f"{cause.message if cause else lines[-1] if lines else 'it wrote nothing'} [{path}]"

    def _show(self) -> None:
        """Write the new output of this host's first rank to `output`."""
        try:
            with self._log(self._job.ranks[0]).open("rb") as file:
                file.seek(self._shown)
                new = file.read()
        except FileNotFoundError:
            return
        self._shown += len(new)
        self._output.add(new)


def _text(path: Path) -> str:
    """The last `_LOG_END` bytes of a log as text; empty if the log does not exist yet."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_END))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
