"""The vocabulary of a run on text, saved in its folder: it gives the token numbers their meaning."""

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
    """Write the vocabulary, if the data have one."""
    if feeds.words is not None:
        write_atomically(folder / VOCABULARY, feeds.words.text())


def check_vocabulary(folder: Path, feeds: Feeds) -> None:
    """Refuse to resume with a text whose vocabulary differs from the run's."""
    words = load_vocabulary(folder)
    if words is not None and feeds.words is not None and words.text() != feeds.words.text():
        raise UserError(
            f"cannot resume {folder}: the text in {feeds.origin} makes another vocabulary than that of the run "
            f"({VOCABULARY}); give data.folder and data.held_out as they were"
        )


def load_vocabulary(folder: Path) -> Vocabulary | None:
    """Read the vocabulary that a run was trained with; None if it has none, for example a run on images."""
    path = folder / VOCABULARY
    if not path.is_file():
        return None
    from scripts.data import wordpiece  # its library is needed only for text

    return wordpiece.read(path, "the run's weights need the one that it was trained with")
