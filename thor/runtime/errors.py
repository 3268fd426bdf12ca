"""What an error of MindSpore's says, for messages that are to be read by a user."""

from __future__ import annotations


def own_words(error: Exception) -> str:
    """An error's message without MindSpore's C++ call stack behind it."""
    return str(error).split("\n\n-----", 1)[0].strip()


class UsageError(Exception):
    """Something that the user can mend; the message says how."""
