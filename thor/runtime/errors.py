"""The error that is shown to the user, and the readable part of MindSpore's error messages."""

from __future__ import annotations


def message_of(error: Exception) -> str:
    """The message of an error, without the C++ call stack that MindSpore appends."""
    return str(error).split("\n\n-----", 1)[0].strip()


class UserError(Exception):
    """An error that the user can correct. Its message says what is wrong and what to do; no traceback is shown."""
