"""From a batch to the loss: how inputs are bound, what network and loss return, and what is wrong with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn

_FLOATS = ("Float16", "Float32", "Float64", "BFloat16")


class Forward:
    """The forward pass of a training step: ``loss_fn(net(*inputs), *labels)``, or ``net(*inputs)`` without a loss.

    The last inputs of a batch are the labels, as many as ``loss_fn`` has required arguments behind the output.

    Args:
        net: the network.
        loss_fn: a Cell or a function of the network's output and the labels; None if the network returns the loss.
        has_aux: whether the loss is followed by further outputs, (loss, ...), which a step hands on.
    """

    def __init__(self, net: nn.Cell, loss_fn: Callable[..., Any] | None, has_aux: bool):
        if isinstance(loss_fn, type):
            name = loss_fn.__name__
            raise TypeError(f"loss_fn must be a function or a Cell, but got the class {name}: make one, as {name}()")
        self.net, self.loss_fn, self.has_aux = net, loss_fn, has_aux
        self.labels = 0 if loss_fn is None else _labels_of(loss_fn)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """A batch as positional tensors, the labels last; NumPy arrays become Tensors.

        Raises:
            TypeError: if inputs do not fit the network or the loss.
            ValueError: if the batch is empty.
        """
        args = _by_position(self.net, self.loss_fn, self.labels, args, kwargs) if kwargs else tuple(args)
        if len(args) <= self.labels and self.loss_fn is not None:
            raise TypeError(
                f"a batch must have an input for the network and {self.labels} for loss_fn, but got {len(args)} in all"
            )
        return _as_tensors(args)

    def function(self) -> Callable[..., Any]:
        """``forward(*inputs)`` for the compiler: the loss, or with ``has_aux`` what network and loss return."""
        net, loss_fn, labels = self.net, self.loss_fn, self.labels

        def with_loss(*inputs):
            return loss_fn(net(*inputs[:-labels]), *inputs[-labels:])

        def without_loss(*inputs):
            return net(*inputs)

        return without_loss if loss_fn is None else with_loss

    def loss_alone(self) -> Callable[..., Any]:
        """``forward(*inputs)`` for the compiler: the loss without further outputs."""
        function = self.function()

        def first(*inputs):
            return function(*inputs)[0]

        return first if self.has_aux else function

    def loss(self, *inputs: Any) -> Tensor:
        """The loss of a batch, operator by operator."""
        found: Tensor = self.loss_alone()(*inputs)
        return found

    @property
    def source(self) -> str:
        """What returns the loss, in errors."""
        return type(self.net).__name__ if self.loss_fn is None else "loss_fn"

    def complaint(self, inputs: Sequence[Any]) -> str | None:
        """What is wrong with what network and loss return for these inputs; None if nothing is."""
        found, who = self.function()(*inputs), self.source
        if self.has_aux:
            if not isinstance(found, tuple) or len(found) < 2:
                return f"has_aux=True: {who} must return (loss, ...), but returned {_described(found)}"
            found = found[0]
        elif isinstance(found, (tuple, list)):
            return (
                f"{who} must return the loss alone, but returned {_described(found)}: give has_aux=True if the first "
                f"of them is the loss"
            )
        if not isinstance(found, Tensor) or not any(name in str(found.dtype) for name in _FLOATS):
            return f"the loss must be a float Tensor, but {who} returned {_described(found)}"
        if found.size != 1:
            return (
                f"the loss must be one number, but {who} returned {_described(found)}: take the mean over the examples "
                f"(reduction='mean')"
            )
        return None

    def cells(self) -> list[tuple[str, nn.Cell]]:
        """The Cells of network and loss, all levels, with their names."""
        roots = [self.net, *(value for value in _reached(self.loss_fn) if isinstance(value, nn.Cell))]
        return [named for root in roots for named in root.cells_and_names()]

    def other_parameters(self) -> list[Parameter]:
        """Parameters of the loss that are not the network's: of Cells, of bound objects, and bare ones in closures."""
        known = {id(p) for p in self.net.get_parameters()}
        found: dict[int, Parameter] = {}
        for value in _reached(self.loss_fn):
            each = [value] if isinstance(value, Parameter) else value.get_parameters()
            found |= {id(p): p for p in each if id(p) not in known}
        return list(found.values())


class FunctionForward(Forward):
    """The forward pass of a loop of the user's own: a function of the inputs that returns the loss.

    Args:
        function: ``function(*inputs)``, the loss, or with ``has_aux`` (loss, ...).
        net: the network that the optimizer was made for.
        has_aux: whether the loss is followed by further outputs.
    """

    def __init__(self, function: Callable[..., Any], net: nn.Cell, has_aux: bool):
        self.net, self.loss_fn, self.has_aux, self.labels = net, function, has_aux, 0
        self._function = function

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """A batch as positional tensors; NumPy arrays become Tensors.

        Raises:
            TypeError: if inputs do not fit the function.
            ValueError: if the batch is empty.
        """
        if kwargs:
            bound = inspect.signature(self._function).bind(*args, **kwargs)
            _refuse_without_position("forward", [name for name in kwargs if name not in _names(self._function)])
            bound.apply_defaults()
            args = bound.args
        return _as_tensors(args)

    @property
    def source(self) -> str:
        """What returns the loss, in errors."""
        return "forward"

    def function(self) -> Callable[..., Any]:
        """The function itself."""
        return self._function


def examples_of(inputs, unknown=1):
    """Number of examples of a batch: the length of its first input; ``unknown`` if none. For the compiler too."""
    if len(inputs) > 0 and isinstance(inputs[0], Tensor) and inputs[0].ndim > 0:
        return inputs[0].shape[0]
    return unknown


def further(outputs: tuple[Any, ...]) -> Any:
    """Further outputs as a step returns them: one as it is, several as a tuple."""
    return outputs[0] if len(outputs) == 1 else outputs


def _as_tensors(args: Sequence[Any]) -> tuple[Any, ...]:
    """Inputs with NumPy arrays as Tensors.

    Raises:
        TypeError: for an array of another library.
        ValueError: if the batch is empty.
    """
    for index, each in enumerate(args):
        if hasattr(each, "__array__") and not isinstance(each, (Tensor, np.ndarray, np.generic)):
            kind = f"{type(each).__module__.partition('.')[0]}.{type(each).__name__}"
            raise TypeError(
                f"input {index} of a batch must be a Tensor or a NumPy array, but got a {kind}: give np.asarray of it"
            )
        if isinstance(each, (Tensor, np.ndarray)) and each.ndim and not each.shape[0]:
            raise ValueError(f"the batch is empty: input {index} has shape {tuple(each.shape)}; leave it out")
    return tuple(Tensor(each) if isinstance(each, np.ndarray) else each for each in args)


def _refuse_without_position(who: str, names: Iterable[str]) -> None:
    """Raise TypeError for the first of these inputs, which have a name alone."""
    for name in names:
        raise TypeError(f"{who}: input {name!r} has no position, which a compiled step needs")


def _labels_of(loss_fn: Callable[..., Any]) -> int:
    """How many labels a loss takes: its required arguments behind the output, at least one."""
    function = loss_fn.construct if isinstance(loss_fn, nn.Cell) else loss_fn
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    required = [p for p in parameters if p.kind in _POSITIONAL and p.default is inspect.Parameter.empty]
    return max(1, len(required) - 1)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _by_position(
    net: nn.Cell, loss_fn: Callable[..., Any] | None, labels: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Inputs by name in the places that network and loss have for them."""
    names = _names(net.construct)
    own = {name: value for name, value in kwargs.items() if name in names}
    others = {name: value for name, value in kwargs.items() if name not in names}
    if loss_fn is None and others:
        raise TypeError(f"{type(net).__name__} has no input {next(iter(others))!r}; it has {', '.join(names)}")
    behind = labels - len(others)
    if behind < 0:
        raise TypeError(
            f"inputs must be the network's ({', '.join(names)}) and {labels} for the loss, but got {', '.join(kwargs)}"
        )
    first, last = (args[: len(args) - behind], args[len(args) - behind :]) if behind else (args, ())
    try:
        bound = inspect.signature(net.construct).bind(*first, **own)
    except TypeError as error:
        raise TypeError(f"inputs do not fit {type(net).__name__}({', '.join(names)}): {error}") from None
    if set(bound.arguments) != set(names[: len(bound.arguments)]):
        bound.apply_defaults()
    _refuse_without_position(type(net).__name__, bound.kwargs)
    targets = _names(loss_fn.construct if isinstance(loss_fn, nn.Cell) else loss_fn)[1:] if others else []
    unknown = [name for name in others if name not in targets]
    if unknown:
        raise TypeError(f"neither {type(net).__name__} nor loss_fn has an input {unknown[0]!r}; they have "
                        f"{', '.join([*names, *targets])}")  # fmt: skip
    return (*bound.args, *last, *(others[name] for name in targets if name in others))


def _names(function: Any) -> list[str]:
    """The names of a function's positional arguments."""
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in _POSITIONAL]


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a Tensor of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, (tuple, list)):
        return f"{len(value)} values"
    return f"a {type(value).__name__}"


def _reached(loss_fn: Any) -> Iterator[Any]:
    """Cells and Parameters that a loss is, or that its object, its closure or the globals it names hold."""
    closure: list[Any] = []
    if inspect.isfunction(loss_fn):
        variables = inspect.getclosurevars(loss_fn)
        closure = [*variables.nonlocals.values(), *variables.globals.values()]
    bound = getattr(loss_fn, "__self__", None)
    inside = [] if bound is None or isinstance(bound, nn.Cell) else list(vars(bound).values())
    seen: set[int] = set()
    for value in (loss_fn, bound, *inside, *closure):
        if isinstance(value, nn.Cell | Parameter) and id(value) not in seen:
            seen.add(id(value))
            yield value
