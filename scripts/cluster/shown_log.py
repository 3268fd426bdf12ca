"""The part of a rank's log that the launcher shows: complete lines, without MindSpore's INFO lines."""

from __future__ import annotations

import re
from typing import IO

from scripts.cluster import causes

_INFO = re.compile(rb"^\[INFO\] \w+\(")  # MindSpore writes some of them in spite of GLOG_v


class ShownLog:
    """Writes a growing log to `output`, line by line. Errors for the user are held back until the end.

    The launcher reports an error itself; shown here too, the same error would be read twice.
    """

    def __init__(self, output: IO[str]) -> None:
        self._output = output
        self._rest = b""  # an incomplete line
        self._errors: list[str] = []

    def add(self, new: bytes) -> None:
        """Show the lines that are complete now."""
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._take(line + b"\n")
        self._output.flush()

    def end(self, reported: str) -> None:
        """Show the rest, and the errors that are not part of the message ``reported``."""
        self._take(self._rest)
        self._rest = b""
        for error in self._errors:
            cause = causes.of_log(error)
            if cause is None or cause.message not in reported:
                self._output.write(error)
        self._errors.clear()
        self._output.flush()

    def _take(self, line: bytes) -> None:
        """Show a line, unless it is MindSpore's or belongs to an error."""
        text = line.decode(errors="replace")
        if _INFO.match(line):
            return
        if text.startswith(causes.USER_ERROR):
            self._errors.append(text)
        elif self._errors and text.startswith(causes.CONTINUED):
            self._errors[-1] += text
        else:
            self._output.write(text)
