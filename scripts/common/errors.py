"""Exit statuses, and how errors that a user can fix are reported."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from thor.runtime.errors import UserError

USAGE_ERROR = 2
STOPPED = 3  # ended early by the file `stop` in the run's folder: a launcher must not restart it
INTERRUPTED = 130  # ended early by a signal; the status that shells use for Ctrl-C
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def reporting_write_errors(path: Path, lost: str) -> Iterator[None]:
    """Convert an OSError of the enclosed block to a UserError: the user can fix a full disk or a wrong path.

    Args:
        path: The file that is written, or its folder.
        lost: For the message: what is not saved, and what still is.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        cure = "make room there, then go on" if error.errno in _FULL else "give another path, or mend this one"
        raise UserError(f"{path}: cannot be written ({reason}): {lost}; {cure}") from error


def run_program(main: Callable[[], int]) -> None:
    """Run a program and exit with its status; a UserError is printed as `error: ...` and gives status 2."""
    try:
        status = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = USAGE_ERROR
    sys.exit(status)
