"""What the command line names: a network as ``module:callable``, its data, its loss."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from thor.profile.gather import synthetic_batches
from thor.runtime.errors import UserError

LOSSES = ("cross-entropy", "squared-error")


def resolve(name: str) -> Any:
    """The object that ``module:attribute`` names, the current folder on the path; the nearest name where it is not."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise UserError(f"{name!r}: give module:callable, as in models.resnet:resnet50")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
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
    if not hasattr(module, attribute):
        names = [n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))]
        raise UserError(f"module {module_name} has no {attribute!r}{_nearest(attribute, names)}")
    return getattr(module, attribute)


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _nearest_module(name: str) -> str:
    """A module beside the one that is missing, by name."""
    parent = Path(*name.split(".")[:-1])
    names = [path.stem for path in parent.glob("*.py")] + [path.parent.name for path in parent.glob("*/__init__.py")]
    return _nearest(name.split(".")[-1], names)


def build_network(name: str, classes: int | None) -> nn.Cell:
    """Call what the user named, with ``num_classes`` where it takes one and --classes was given."""
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


def parse_shape(text: str) -> tuple[int, ...]:
    """A shape such as 8,3,224,224 as a tuple."""
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if len(shape) < 2 or min(shape) < 1:
        raise UserError(f"--input {text!r}: give batch,channels,... as positive integers, as in 8,3,224,224")
    return shape


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


def build_batches(
    data: str | None,
    shape: tuple[int, ...] | None,
    classes: int,
    count: int,
    batch_size: int,
    reconstruct: bool,
    seed: int,
) -> tuple[str, Callable[[], Iterator[tuple[Tensor, ...]]]]:
    """(where the data is from, batches) for --data or --input."""
    if data is None:
        if shape is None:
            raise UserError("give --data, or --input with the shape of a batch (as in --input 8,3,224,224)")
        batches = synthetic_batches(shape, classes, count, seed)
        return "synthetic", _reconstructing(batches) if reconstruct else batches
    if data == "fashion-mnist":
        images, labels = _fashion_mnist(normalised=not reconstruct)
        batches = _from_arrays(images, labels, batch_size, count, seed)
        return data, _reconstructing(batches) if reconstruct else batches
    source = resolve(data)
    if not callable(source):
        raise UserError(f"--data {data} is a {type(source).__name__}, not a callable that makes batches")

    def limited() -> Iterator[tuple[Tensor, ...]]:
        for index, batch in enumerate(source()):
            if index == count:
                return
            if not isinstance(batch, (tuple, list)) or len(batch) < 2:
                raise UserError(f"--data {data} must make batches (inputs, targets), but made a {type(batch).__name__}")
            yield tuple(item if isinstance(item, Tensor) else Tensor(np.asarray(item)) for item in batch)

    return data, limited


def _reconstructing(batches: Callable[[], Iterator[tuple[Tensor, ...]]]) -> Callable[[], Iterator[tuple[Tensor, ...]]]:
    """Inputs as their own targets."""

    def own() -> Iterator[tuple[Tensor, ...]]:
        for inputs, *_ in batches():
            yield inputs, inputs

    return own


def _from_arrays(
    images: np.ndarray, labels: np.ndarray, batch_size: int, count: int, seed: int
) -> Callable[[], Iterator[tuple[Tensor, ...]]]:
    def batches() -> Iterator[tuple[Tensor, ...]]:
        order = np.random.default_rng(seed).permutation(len(images))
        for index in range(min(count, len(images) // batch_size)):
            rows = order[index * batch_size : (index + 1) * batch_size]
            yield Tensor(images[rows]), Tensor(labels[rows])

    return batches


def _fashion_mnist(normalised: bool) -> tuple[np.ndarray, np.ndarray]:
    """As scripts/train.py feeds it, [N, 1, 28, 28] float32: normalised, or in [0, 1] where it is to be reproduced."""
    try:
        reader, feeds = map(importlib.import_module, ("scripts.data.fashion_mnist", "scripts.data.factory"))
    except ImportError as error:
        raise UserError(
            "--data fashion-mnist needs the readers of the project's checkout: run thor there, "
            "or give your own --data module:callable"
        ) from error
    try:
        split = reader.load(reader.resolve(), "train")
    except Exception as error:  # the reader's own errors say what to do
        raise UserError(str(error)) from error
    images = split.images[:, None].astype(np.float32) / 255.0
    if normalised:
        images = (images - np.float32(feeds.FASHION_MEAN)) / np.float32(feeds.FASHION_STD)
    return images, split.labels.astype(np.int32)
