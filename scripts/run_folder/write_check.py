"""Check that a run's folder can be made and written, without leaving anything behind."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path


def why_not_writable(folder: Path) -> str | None:
    """The reason why a folder cannot be made or written; None if it can be."""
    made: list[Path] = []
    try:
        for part in reversed([folder, *folder.parents]):
            if not part.exists():
                part.mkdir()
                made.append(part)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for part in reversed(made):
            with suppress(OSError):
                part.rmdir()
