"""Atomic file writes: after a kill, a power cut or on a full disk, the file has its previous content or the new one."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Write a file under a temporary name, then rename it.

    The temporary name has the process id: several processes may write the same file of a cache.

    Args:
        path: The file.
        content: What it will hold.
        durable: Wait until the disk has it: a power cut may empty it otherwise.
    """
    temporary = path.with_name(f"writing.{path.name}.{os.getpid()}")
    try:
        if isinstance(content, str):
            temporary.write_text(content, encoding="utf-8")
        else:
            temporary.write_bytes(content)
        if durable:
            replace_durably(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # an incomplete file takes room that the disk may lack


def replace_durably(temporary: Path, path: Path) -> None:
    """Rename a file after the disk has its content, and wait until the disk has its name."""
    _to_disk(temporary)
    os.replace(temporary, path)
    with suppress(OSError):  # some network file systems know no such request for a folder
        _to_disk(path.parent)


def _to_disk(path: Path) -> None:
    """Wait until the disk has a file's content, or the names in a folder."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_results(path: Path | None, results: Any) -> None:
    """Write a benchmark's results so far as JSON; nothing if ``path`` is None. Call it after each measurement."""
    if path is not None:
        write_atomically(path, json.dumps(results, indent=2))
