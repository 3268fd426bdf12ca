"""Functions of tensors that MindSpore compiles, with an owner that can release them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

from mindspore import Parameter, nn

from first_order.cells import set_unregistered
from first_order.mindspore_versions import compiler


class CompiledFunction:
    """A function that is compiled as the ``construct`` of a Cell of its own, in GRAPH_MODE and in PYNATIVE_MODE.

    A function under ``ms.jit`` goes on reading the storage that a Parameter had when it was compiled, and stays in
    MindSpore's cache for good. A Cell's graph reads each Parameter where its value lies at the call, also after
    ``set_data`` or ``load_param_into_net``, and can be released.

    Args:
        function: a function of tensors, in the language of MindSpore's compiler. It is compiled anew for inputs of
            other shapes or types.
        parameters: Parameters that the function uses, if some of them have equal names, as those of two networks may.

    Attributes:
        seconds: Seconds that compilations took in this process, of all functions together.
    """

    seconds: ClassVar[float] = 0.0
    _ended: ClassVar[list[_Graph]] = []  # whose owners are gone

    def __init__(self, function: Callable[..., Any], parameters: Iterable[Parameter] = ()):
        while self._ended:
            _free(self._ended.pop())
        self._function, self._cell = function, _Graph()
        # not freed at once: MindSpore collects garbage while it compiles, and would compile that graph once more
        weakref.finalize(self, self._ended.append, self._cell).atexit = False  # MindSpore frees what is left at its end
        self._namesakes = _namesakes(parameters)

    def __call__(self, *tensors: Any) -> Any:
        with _renamed(self._namesakes) if self._namesakes else nullcontext():
            try:
                set_unregistered(self._cell, function=self._function)
                return self._cell.compile_and_run(*tensors)
            except Exception:
                clear_failed_call()
                raise
            finally:
                set_unregistered(self._cell, function=None)

    @property
    def graphs(self) -> int:
        """Number of graphs: one for each combination of shapes and types, or one for all lengths."""
        return len(self._cell.compile_cache)

    def set_inputs(self, *tensors: Any) -> None:
        """Compile once for all lengths of the axes that are None in the shapes of these Tensors."""
        self._cell.set_inputs(*tensors)

    def release(self) -> None:
        """Free the compiled graphs; the next call compiles again."""
        _free(self._cell)


def _free(cell: _Graph) -> None:
    """Free the graphs of a Cell, which MindSpore keeps otherwise."""
    compiler._cell_graph_executor.del_net_res(cell, set(cell.compile_cache))
    cell.compile_cache.clear()


def clear_failed_call() -> None:
    """Clear what a call that has failed leaves behind.

    MindSpore would go on recording operators for a gradient or a graph that never comes, and fail in other places.
    """
    compiler._pynative_executor.clear_res()


class _Graph(nn.Cell):
    """A Cell around a function; what the function uses belongs to others and is no child.

    MindSpore keeps the Cell. It therefore holds its function, and through it perhaps its owner, during calls alone.
    """

    function: Callable[..., Any] | None

    def __init__(self):
        super().__init__(auto_prefix=False)

    def compile(self, *tensors: Any, **options: Any) -> None:
        """Compile, if there is no graph for such tensors, and count the seconds."""
        known, begin = len(self.compile_cache), time.perf_counter()
        super().compile(*tensors, **options)
        if len(self.compile_cache) > known:
            CompiledFunction.seconds += time.perf_counter() - begin

    def construct(self, *tensors):
        return self.function(*tensors)


def _namesakes(parameters: Iterable[Parameter]) -> list[Parameter]:
    """The Parameters whose name another one has already."""
    names: dict[str, Parameter] = {}
    return [p for p in parameters if names.setdefault(p.name, p) is not p]


@contextmanager
def _renamed(parameters: Sequence[Parameter]) -> Iterator[None]:
    """Give Parameters names of their own within the context: a graph refuses two of one name."""
    names = [parameter.name for parameter in parameters]
    try:
        for index, parameter in enumerate(parameters):
            parameter.name = f"{names[index]}.namesake{index}"
        yield
    finally:
        for parameter, name in zip(parameters, names, strict=True):
            parameter.name = name
