"""JSON from files of unknown origin."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str) -> Any:
    """Parse a JSON text. An invalid text raises ValueError, also one nested too deeply for Python's stack."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error
