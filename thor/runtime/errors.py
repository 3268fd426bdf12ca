"""The error that a user is meant to see, and what an error of MindSpore's says."""

from __future__ import annotations


def message_of(error: Exception) -> str:
    """An error's message without MindSpore's C++ call stack behind it."""
    return str(error).split("\n\n-----", 1)[0].strip()


class UserError(Exception):
    """Something the user can mend. Its message says what is wrong and what to do; no traceback is shown."""
