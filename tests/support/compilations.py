"""How many graphs MindSpore compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from first_order.mindspore_versions import compiler


def count_compilations(monkeypatch: Any) -> Callable[[], int]:
    """The number of graphs that MindSpore has compiled since this call, of Cells and of functions under ``ms.jit``."""
    count = [0]

    def counted(compile_: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *arguments: Any, **options: Any) -> Any:
            count[0] += 1
            return compile_(self, *arguments, **options)

        return run

    for owner in (compiler.GraphExecutor_, compiler.JitExecutor_):
        monkeypatch.setattr(owner, "compile", counted(owner.compile))
    return lambda: count[0]
