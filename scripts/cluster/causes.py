"""Finds out why a process of a job has ended, from its exit status and its log."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import IntEnum

from scripts.common.errors import INTERRUPTED, STOPPED


class Kind(IntEnum):
    """Kinds of causes. If several ranks failed, the lowest kind is the cause: a higher one may only follow from it."""

    USER = 0  # a message for the user; a restart would fail again
    MEMORY = 1
    EXCEPTION = 2
    SIGNAL = 3
    STATUS = 4
    COLLECTIVE = 5


@dataclass(frozen=True)
class Cause:
    """The reason why a process has ended, in one line."""

    kind: Kind
    message: str


USER_ERROR = "error: "  # begins a message for the user
CONTINUED = " " * len(USER_ERROR)  # begins each further line of it

_TRACEBACK = "Traceback (most recent call last):"
_USER_ERROR = re.compile(rf"^{USER_ERROR}(.+(?:\n{CONTINUED}\S.*)*)$", re.MULTILINE)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::.*|$)")  # the line after the frames, which are indented
_MEMORY = re.compile(
    r"MemoryError|bad_alloc|out of memory|memory not enough|(?:alloc\w*|malloc) [\w ]*memory[\w ]* fail|"
    r"device memory is insufficient",
    re.IGNORECASE,
)
_COLLECTIVE = re.compile(
    r"AllReduce|AllGather|Broadcast|collective|mccl|hccl|nccl|timed out node|state of the cluster|abnormal nodes",
    re.IGNORECASE,
)
_MAX_CHARACTERS = 300  # longest message that is shown, in characters


def of_log(text: str) -> Cause | None:
    """The cause that a log shows: its last traceback or message for the user, or a memory error of the C++ runtime."""
    told = list(_USER_ERROR.finditer(text))
    begin = text.rfind(_TRACEBACK)
    if told and told[-1].start() > begin:
        return Cause(Kind.USER, "; ".join(line.strip() for line in told[-1][1].splitlines()))
    if begin >= 0:
        message = _exception(text[begin:])
        if message:
            kind = Kind.MEMORY if _MEMORY.search(message) else Kind.EXCEPTION
            return Cause(Kind.COLLECTIVE if kind is Kind.EXCEPTION and _COLLECTIVE.search(message) else kind, message)
    for line in reversed(text.splitlines()):
        if _MEMORY.search(line):
            return Cause(Kind.MEMORY, line.strip()[:_MAX_CHARACTERS])
    return None


def _exception(block: str) -> str | None:
    """The exception of a traceback, without the call stacks that MindSpore adds.

    The message may begin on the exception's line, or below it in a section with a heading, as in the three lines
    `RuntimeError:`, `- Kernel error:`, `Launch kernel failed: ...`.
    """
    lines = block.splitlines()[1:]
    for number, line in enumerate(lines):
        if _EXCEPTION.match(line):
            words = [line.strip()]
            for more in lines[number + 1 :]:
                decoration = not more.strip() or more.startswith(("----", "- "))
                if decoration and len(words) == 1 and line.rstrip().endswith(":"):
                    continue
                if decoration or more.startswith(("[", "Traceback")):
                    break
                words.append(more.strip())
            return " ".join(words)[:_MAX_CHARACTERS]
    return None


def of_status(status: int) -> Cause:
    """The cause that an exit status shows; a negative status is a signal."""
    if status >= 0:
        return Cause(Kind.STATUS, f"ended with exit status {status}")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = {
        "SIGKILL": " (by somebody, or by the kernel for want of memory: dmesg tells)",
        "SIGSEGV": " (a crash in native code)",
        "SIGABRT": " (native code gave up; see the end of its log)",
        "SIGBUS": " (often a full /dev/shm)",
    }.get(name, "")
    return Cause(Kind.SIGNAL, f"killed by {name}{hint}")


def of_process(status: int | None, log: str) -> Cause | None:
    """The cause of a process's end; None if neither its status (None: unknown) nor its log shows one."""
    if status in (STOPPED, INTERRUPTED):
        return of_status(status)  # the program ended as requested, so errors in its log did not end it
    told = of_log(log)
    if status is not None and status < 0 and (told is None or told.kind is not Kind.MEMORY):
        return of_status(status)  # a killed process did not end by an error of its own
    if told is not None:
        return told
    return None if status is None else of_status(status)
