"""One line of the report of ``thor doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked at.
        level: ``ok``, ``warn`` (it works, or may) or ``fail``.
        text: What was found.
        cure: What to do about it; empty where all is well.
    """

    name: str
    level: Level
    text: str
    cure: str = ""
