"""The vocabulary of a run on text, kept in its folder: weights mean nothing without the pieces that they number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scripts.common.atomic_write import write_atomically
from scripts.data.factory import Feeds
from thor.runtime.errors import UserError

if TYPE_CHECKING:
    from scripts.data.wordpiece import Vocabulary

VOCABULARY = "vocabulary.json"


def save_vocabulary(folder: Path, feeds: Feeds) -> None:
    """Write a run's vocabulary, if it has one."""
    if feeds.words is not None:
        write_atomically(folder / VOCABULARY, feeds.words.text())


def check_vocabulary(folder: Path, feeds: Feeds) -> None:
    """Refuse to go on with a text that makes another vocabulary: the same number would be another piece."""
    words = load_vocabulary(folder)
    if words is not None and feeds.words is not None and words.text() != feeds.words.text():
        raise UserError(
            f"cannot resume {folder}: the text in {feeds.origin} makes another vocabulary than that of the run "
            f"({VOCABULARY}); give data.folder and data.held_out as they were"
        )


def load_vocabulary(folder: Path) -> Vocabulary | None:
    """The vocabulary that a run was trained with; None where it has none, as of images."""
    path = folder / VOCABULARY
    if not path.is_file():
        return None
    from scripts.data import wordpiece  # its library is needed for text alone

    return wordpiece.read(path, "the run's weights need the one that it was trained with")
