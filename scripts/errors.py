"""The one error that a user is meant to see."""

from __future__ import annotations

import sys
from collections.abc import Callable

USAGE_ERROR = 2
INTERRUPTED = 130  # ended early by the user, as a shell has it for Ctrl-C


class UserError(Exception):
    """Something the user can mend. Its message says what is wrong and what to do; no traceback is shown."""


def run_program(main: Callable[[], int]) -> None:
    """Run a program to its exit status; a UserError becomes `error: ...` on standard error and status 2."""
    try:
        status = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = USAGE_ERROR
    sys.exit(status)
