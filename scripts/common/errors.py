"""The one error that a user is meant to see."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from thor.runtime.errors import UserError

USAGE_ERROR = 2
STOPPED = 3  # ended early by the file `stop` in its folder: whoever starts it again by itself would undo that
INTERRUPTED = 130  # ended early by a signal, as a shell has it for Ctrl-C
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def reporting_write_errors(path: Path, lost: str) -> Iterator[None]:
    """Around what writes a file: a full disk or a wrong path is the user's to mend, and no reason for a traceback.

    Args:
        path: The file, or the folder that it goes to.
        lost: What is not there now, and what is.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        cure = "make room there, then go on" if error.errno in _FULL else "give another path, or mend this one"
        raise UserError(f"{path}: cannot be written ({reason}): {lost}; {cure}") from error


def run_program(main: Callable[[], int]) -> None:
    """Run a program to its exit status; a UserError becomes `error: ...` on standard error and status 2."""
    try:
        status = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = USAGE_ERROR
    sys.exit(status)
