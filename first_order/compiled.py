"""Functions of tensors that MindSpore compiles, with an owner that can release them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import nn
from mindspore.common.api import _cell_graph_executor

from first_order.cells import set_unregistered


class CompiledFunction:
    """A function that is compiled as the ``construct`` of a Cell of its own, in GRAPH_MODE and in PYNATIVE_MODE.

    A function under ``ms.jit`` goes on reading the storage that a Parameter had when it was compiled, and stays in
    MindSpore's cache for good. A Cell's graph reads each Parameter where its value lies at the call, also after
    ``set_data`` or ``load_param_into_net``, and can be released.

    Args:
        function: a function of tensors, in the language of MindSpore's compiler. It is compiled anew for inputs of
            other shapes or types.
    """

    def __init__(self, function: Callable[..., Any]):
        self._cell = _Graph(function)

    def __call__(self, *tensors: Any) -> Any:
        return self._cell.compile_and_run(*tensors)

    def release(self) -> None:
        """Free the compiled graphs; the next call compiles again."""
        _cell_graph_executor.del_net_res(self._cell, set(self._cell.compile_cache))
        self._cell.compile_cache.clear()


class _Graph(nn.Cell):
    """A Cell around a function; what the function uses belongs to others and is no child."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(auto_prefix=False)
        set_unregistered(self, function=function)

    def construct(self, *tensors):
        return self.function(*tensors)
