"""Why a job's process has ended, from its exit status and its log."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import IntEnum

from scripts.common.errors import INTERRUPTED, STOPPED


class Kind(IntEnum):
    """What it was, from the cause of a failure to what may only follow from another rank's."""

    USER = 0  # a message for the user: the same again would fail again
    MEMORY = 1
    EXCEPTION = 2
    SIGNAL = 3
    STATUS = 4
    COLLECTIVE = 5


@dataclass(frozen=True)
class Cause:
    """Why a process has ended, in one line."""

    kind: Kind
    message: str


_TRACEBACK = "Traceback (most recent call last):"
_USER_ERROR = re.compile(r"^error: (.+)$", re.MULTILINE)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::.*|$)")  # the line behind the frames, which are indented
_MEMORY = re.compile(
    r"MemoryError|bad_alloc|out of memory|memory not enough|(?:alloc\w*|malloc) [\w ]*memory[\w ]* fail|"
    r"device memory is insufficient",
    re.IGNORECASE,
)
_COLLECTIVE = re.compile(
    r"AllReduce|AllGather|Broadcast|collective|mccl|hccl|nccl|timed out node|state of the cluster|abnormal nodes",
    re.IGNORECASE,
)
_WORDS = 300  # characters of a message that are shown


def of_log(text: str) -> Cause | None:
    """What a log says: the last traceback or message for the user, or what the C++ runtime printed."""
    told = list(_USER_ERROR.finditer(text))
    begin = text.rfind(_TRACEBACK)
    if told and told[-1].start() > begin:
        return Cause(Kind.USER, told[-1][1])
    if begin >= 0:
        message = _exception(text[begin:])
        if message:
            kind = Kind.MEMORY if _MEMORY.search(message) else Kind.EXCEPTION
            return Cause(Kind.COLLECTIVE if kind is Kind.EXCEPTION and _COLLECTIVE.search(message) else kind, message)
    for line in reversed(text.splitlines()):
        if _MEMORY.search(line):
            return Cause(Kind.MEMORY, line.strip()[:_WORDS])
    return None


def _exception(block: str) -> str | None:
    """The exception of a traceback, without the call stacks that MindSpore adds.

    Its message may begin on the exception's line, or below in a section of its own:  RuntimeError:, - Kernel error:,
    Launch kernel failed: ...
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
            return " ".join(words)[:_WORDS]
    return None


def of_status(status: int) -> Cause:
    """What an exit status says; negative ones are signals."""
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
    """Why a process has ended; None where neither its status (None: not known) nor its log tells."""
    if status in (STOPPED, INTERRUPTED):
        return of_status(status)  # the program's own word: what else its log tells of, it has got over
    told = of_log(log)
    if status is not None and status < 0 and (told is None or told.kind is not Kind.MEMORY):
        return of_status(status)  # whoever is killed has not finished a message of its own
    if told is not None:
        return told
    return None if status is None else of_status(status)
