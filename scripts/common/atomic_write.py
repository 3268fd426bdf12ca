"""Files that have their names only once complete: a kill or a full disk leaves what was there before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file. The temporary name is the process's own, since several may write the same file of a cache."""
    temporary = path.with_name(f"writing.{path.name}.{os.getpid()}")
    try:
        if isinstance(content, str):
            temporary.write_text(content, encoding="utf-8")
        else:
            temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # what is half written takes room that the disk may lack


def write_results(path: Path | None, results: Any) -> None:
    """Write what a benchmark has measured so far, if it is to be kept: an interrupt loses what is under way alone."""
    if path is not None:
        write_atomically(path, json.dumps(results, indent=2))
