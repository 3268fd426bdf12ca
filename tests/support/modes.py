"""MindSpore's mode within a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mindspore as ms


@contextmanager
def in_mode(mode: int) -> Iterator[None]:
    """GRAPH_MODE or PYNATIVE_MODE within the context, and the mode as it was behind it."""
    before = ms.get_context("mode")
    ms.set_context(mode=mode)
    try:
        yield
    finally:
        ms.set_context(mode=before)
