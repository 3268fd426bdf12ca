"""The network and the loss of a configuration, as MindSpore cells."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

import models
from models.cross_entropy import CrossEntropy
from scripts.settings.train_settings import TrainSettings
from thor.runtime.errors import UserError


class SumOfSquares(nn.Cell):
    """Squared error of a reconstruction: summed over an image's pixels, averaged over the batch."""

    def construct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """mean_b sum_p (outputs - targets)^2."""
        difference = outputs - targets.reshape(outputs.shape)
        return (difference * difference).reshape(outputs.shape[0], -1).sum(-1).mean()


class PixelCrossEntropy(nn.Cell):
    """Binary cross-entropy of a reconstruction's logits: summed over pixels, averaged over the batch."""

    def construct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """mean_b sum_p log(1 + exp(outputs)) - targets outputs, in its stable form."""
        targets = targets.reshape(outputs.shape)
        softplus = ops.relu(outputs) + ops.log1p(ops.exp(-ops.abs(outputs)))
        return (softplus - targets * outputs).reshape(outputs.shape[0], -1).sum(-1).mean()


def build_network(settings: TrainSettings, from_data: Mapping[str, Any] | None = None) -> nn.Cell:
    """Build the network of a configuration, with its mixed precision.

    Args:
        settings: The configuration.
        from_data: Arguments for the network's factory that depend on the data; `network_options` override them.
    """
    factory = _factory(settings.network)
    options = {**(from_data or {}), **settings.network_options}
    try:
        network = factory(**options)
    except (TypeError, ValueError) as error:
        raise UserError(f"network {settings.network} with {options}: {error}") from None
    if not isinstance(network, nn.Cell):
        raise UserError(f"network {settings.network}: made a {type(network).__name__}, and must make a Cell")
    _check_objective(settings, bool(getattr(network, "predicts_next", False)))
    if settings.amp != "O0":  # weights keep float32 and their names; MindSpore casts inside the layers
        network = ms.amp.auto_mixed_precision(network, settings.amp, ms.float16)
    return network


def _check_objective(settings: TrainSettings, predicts_next: bool) -> None:
    """Require a network with `predicts_next` for the objective next, and one without it for masked words."""
    if settings.data.name != "text" or predicts_next == (settings.data.objective == "next"):
        return
    if predicts_next:
        raise UserError(f"network {settings.network} predicts the next word: set data.objective to next")
    raise UserError(
        f"data.objective = next: network {settings.network} may look at the words that it is to predict; take "
        f"causal_lm, or give your own Cell the attribute predicts_next = True if it looks back only"
    )


def build_loss(settings: TrainSettings) -> nn.Cell:
    """Build the loss, a mean over the batch."""
    if settings.loss == "cross_entropy":
        smoothing = settings.label_smoothing
        return nn.CrossEntropyLoss(label_smoothing=smoothing) if smoothing else CrossEntropy()
    return SumOfSquares() if settings.loss == "squared_error" else PixelCrossEntropy()


def _factory(name: str) -> Callable[..., Any]:
    """The network's factory: a short name in `models`, or module:callable."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        if name not in models.__all__:
            raise UserError(f"network = {name!r}: must be one of {', '.join(models.__all__)}, or module:callable")
        found: Callable[..., Any] = getattr(models, name)
        return found
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"network = {name!r}: {error}") from None
