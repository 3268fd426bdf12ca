"""The name of this machine's processor."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path


def processor_name() -> str:
    """The processor's name as Linux tells it, else as Python knows it."""
    names: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="ignore").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
