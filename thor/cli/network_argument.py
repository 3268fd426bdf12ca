"""A network, its data and its loss, made from their names on the command line."""

from __future__ import annotations

import atexit
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from thor.profile.gather import synthetic_batches
from thor.runtime.errors import UserError

LOSSES = ("cross-entropy", "squared-error")
#: Short names of data that ``module:callable`` makes, called with batch_size, seed and normalised.
DATA_ALIASES = {"fashion-mnist": "scripts.data.fashion_mnist:training_batches"}


# MindSpore's compiled graphs keep Cells until its modules are gone, where Cell.__del__ can only fail: Python would
# print a traceback for each Cell. Its work, counting Cells and freeing their graphs, is over as the interpreter ends.
atexit.register(setattr, nn.Cell, "__del__", lambda cell: None)


def resolve(name: str) -> Any:
    """The object that ``module:attribute`` names, looked for in the current folder too.

    Raises:
        UserError: there is no such module or attribute; the message has the nearest name.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise UserError(f"{name!r}: give module:callable, as in models.resnet:resnet50")
    module = _import(module_name)
    if not hasattr(module, attribute):
        names = [n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))]
        raise UserError(f"module {module_name} has no {attribute!r}{_nearest(attribute, names)}")
    return getattr(module, attribute)


def _import(module_name: str) -> ModuleType:
    """A module of the current folder or of Python's path; a UserError says why it cannot be imported."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if missing != module_name and not module_name.startswith(f"{missing}."):
            raise UserError(
                f"{module_name}: its import needs the module {missing!r}, which is not installed"
            ) from error
        raise UserError(
            f"no module {missing!r}{_nearest_module(missing)}; run thor where it can be imported"
        ) from error
    except Exception as error:
        raise UserError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _nearest_module(name: str) -> str:
    """A hint at the module with the nearest name in the missing one's folder; empty if none is near."""
    parent = Path(*name.split(".")[:-1])
    names = [path.stem for path in parent.glob("*.py")] + [path.parent.name for path in parent.glob("*/__init__.py")]
    return _nearest(name.split(".")[-1], names)


def build_network(name: str, classes: int | None) -> nn.Cell:
    """The network that a named callable makes, called with ``num_classes`` if it takes that and --classes is given."""
    factory = resolve(name)
    if isinstance(factory, nn.Cell):
        return factory
    if not callable(factory):
        raise UserError(f"{name} is a {type(factory).__name__}, not a callable that makes a network")
    options: dict[str, Any] = {}
    if classes is not None and "num_classes" in _arguments(factory):
        options["num_classes"] = classes
    try:
        net = factory(**options)
    except Exception as error:
        raise UserError(f"{name}({_written(options)}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(net, nn.Cell):
        raise UserError(f"{name}() made a {type(net).__name__}, and must make a mindspore.nn.Cell")
    return net


def _arguments(factory: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return []


def _written(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in options.items())


def build_loss(name: str) -> Callable[..., Any]:
    """A loss of (outputs, targets) by its short name, or ``module:callable``."""
    if name == "cross-entropy":
        return nn.CrossEntropyLoss()
    if name == "squared-error":
        return _squared_error
    if ":" not in name:
        raise UserError(f"--loss {name!r}: must be one of {', '.join(LOSSES)}, or module:callable")
    loss = resolve(name)
    loss = loss() if isinstance(loss, type) else loss
    if not callable(loss):
        raise UserError(f"--loss {name} is a {type(loss).__name__}, not a callable of outputs and targets")
    return loss


def _squared_error(output: Tensor, target: Tensor) -> Tensor:
    return ops.square(output - target.reshape(output.shape)).reshape(output.shape[0], -1).sum(-1).mean()


Batches = Callable[[], Iterator[tuple[Tensor, ...]]]


def build_batches(
    data: str | None,
    shape: tuple[int, ...] | None,
    classes: int,
    count: int,
    batch_size: int,
    reconstruct: bool,
    seed: int,
) -> tuple[str, Batches]:
    """(where the data is from, at most ``count`` batches) for --data or --input.

    With ``reconstruct``, inputs of synthetic data and of an alias are their own targets; a callable of the user's own
    makes its targets itself.
    """
    if data is None:
        if shape is None:
            raise UserError("give --data, or --input with the shape of a batch (as in --input 8,3,224,224)")
        batches = synthetic_batches(shape, classes, count, seed)
        return "synthetic", _reconstructing(batches) if reconstruct else batches
    if data in DATA_ALIASES:
        source = partial(_resolve_alias(data), batch_size=batch_size, seed=seed, normalised=not reconstruct)
        batches = _limited(data, source, count)
        return data, _reconstructing(batches) if reconstruct else batches
    source = resolve(data)
    if not callable(source):
        raise UserError(f"--data {data} is a {type(source).__name__}, not a callable that makes batches")
    return data, _limited(data, source, count)


def _resolve_alias(data: str) -> Callable[..., Any]:
    """The callable that an alias stands for, which is not part of the installed package."""
    try:
        found: Callable[..., Any] = resolve(DATA_ALIASES[data])
    except UserError as error:
        raise UserError(
            f"--data {data} needs the readers of the project's checkout: run thor there, "
            "or give your own --data module:callable"
        ) from error
    return found


def _limited(data: str, source: Callable[[], Any], count: int) -> Batches:
    """The first ``count`` batches of a callable, as Tensors."""

    def batches() -> Iterator[tuple[Tensor, ...]]:
        for batch in islice(source(), count):
            if not isinstance(batch, (tuple, list)) or len(batch) < 2:
                raise UserError(f"--data {data} must make batches (inputs, targets), but made a {type(batch).__name__}")
            yield tuple(item if isinstance(item, Tensor) else Tensor(np.asarray(item)) for item in batch)

    return batches


def _reconstructing(batches: Batches) -> Batches:
    """Batches whose inputs are their own targets."""

    def own() -> Iterator[tuple[Tensor, ...]]:
        for inputs, *_ in batches():
            yield inputs, inputs

    return own
