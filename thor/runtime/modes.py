"""MindSpore's mode within a block of code, and functions that are not to be compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms


@contextmanager
def in_mode(mode: int) -> Iterator[None]:
    """GRAPH_MODE or PYNATIVE_MODE within the context, and the mode as it was behind it."""
    before = ms.get_context("mode")
    _set(mode)
    try:
        yield
    finally:
        _set(before)


def _set(mode: int) -> None:
    """Change the mode, if it is another one: MindSpore keeps a record of every change."""
    if ms.get_context("mode") != mode:
        ms.set_context(mode=mode)


def operator_by_operator(build: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The function that ``build`` makes; it runs in PYNATIVE_MODE, whatever the mode is.

    In GRAPH_MODE MindSpore compiles gradients and calls of Cells unasked. Such a graph goes on reading the storage that
    a Parameter had when it was compiled.
    """
    with in_mode(ms.PYNATIVE_MODE):
        function = build()

    def run(*tensors: Any) -> Any:
        with in_mode(ms.PYNATIVE_MODE):
            return function(*tensors)

    return run
