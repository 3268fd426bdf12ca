"""Types of command-line arguments that several programs share; they refuse invalid values at the start."""

from __future__ import annotations

import argparse
from pathlib import Path

PICTURES = (".jpg", ".pdf", ".png", ".svg")


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    value = _integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but got {value}")
    return value


def seed(text: str) -> int:
    """Parse a random seed: an integer of 32 bits, which is the limit of NumPy's generators."""
    value = _integer(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"must be 0 to {2**32 - 1}, but got {value}")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, but got {text!r}") from None


def picture_to_write(text: str) -> Path:
    """Parse the path of a picture to write, with one of the suffixes PICTURES; creates its folder."""
    if Path(text).suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"must end with {', '.join(PICTURES)}, but got {text!r}")
    return file_to_write(text)


def file_to_write(text: str) -> Path:
    """Parse the path of a file to write; creates its folder."""
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"the folder of {text} cannot be made: {error}") from None
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file to write, but {text} is a folder")
    return path
