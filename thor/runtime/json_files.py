"""JSON from files that anybody may have written."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str) -> Any:
    """What a JSON text holds; whatever is wrong with it is a ValueError, nesting beyond Python's stack too."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error
