"""A lock on a run's folder: two runs in one folder would mix their metrics, checkpoints and logs."""

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
    """Lock a folder for the enclosed block; the system releases the lock if the process dies.

    UserError if another process holds the lock.

    Args:
        folder: The folder to lock; created if missing.
        leads: True for the rank that writes files. The others take no lock.
        option: Command-line option that selects another folder, for the error message.
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
            # any other error: the file system has no locks, and the run goes on without one
        yield
