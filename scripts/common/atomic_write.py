"""Atomic file writes: after a kill or on a full disk, the file has its previous content."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, then rename it.

    The temporary name has the process id: several processes may write the same file of a cache.
    """
    temporary = path.with_name(f"writing.{path.name}.{os.getpid()}")
    try:
        if isinstance(content, str):
            temporary.write_text(content, encoding="utf-8")
        else:
            temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # an incomplete file takes room that the disk may lack


def write_results(path: Path | None, results: Any) -> None:
    """Write a benchmark's results so far as JSON; nothing if ``path`` is None. Call it after each measurement."""
    if path is not None:
        write_atomically(path, json.dumps(results, indent=2))
