"""A folder in which one process at a time trains: two would mix their lines, checkpoints and logs."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.common.errors import reporting_write_errors
from thor.runtime.errors import UserError

LOCK = "lock"


@contextmanager
def folder_lock(folder: Path, leads: bool, option: str = "--out") -> Iterator[None]:
    """Hold the folder, for the rank that writes; the system lets go of it when the process dies, however it does.

    Args:
        folder: What is to be held.
        leads: Whether this process is the one that writes.
        option: How another folder is given, for the message.
    """
    if not leads:
        yield
        return
    with reporting_write_errors(folder, "nothing is trained yet"):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise UserError(
                    f"{folder}: another process is training in this folder; wait for its end, or give another {option}"
                ) from None
            # a file system without locks: as before there were any
        yield
