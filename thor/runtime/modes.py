"""MindSpore's mode, for functions that are not to be compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms


@contextmanager
def pynative_mode() -> Iterator[None]:
    """PYNATIVE_MODE within the context, and the mode as it was behind it."""
    before = ms.get_context("mode")
    if before == ms.PYNATIVE_MODE:
        yield
        return
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=before)


def operator_by_operator(build: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The function that ``build`` makes; it runs in PYNATIVE_MODE, whatever the mode is.

    In GRAPH_MODE MindSpore compiles gradients and calls of Cells unasked. Such a graph goes on reading the storage that
    a Parameter had when it was compiled.
    """
    with pynative_mode():
        function = build()

    def run(*tensors: Any) -> Any:
        with pynative_mode():
            return function(*tensors)

    return run
