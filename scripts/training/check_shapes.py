"""Whether data, network and loss fit together: one example goes through all three before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import mindspore as ms
from mindspore import Tensor, nn

from scripts.data.factory import Feeds, classes_of
from scripts.settings.train_settings import TrainSettings
from thor.runtime.errors import UserError, message_of


def check_fit(settings: TrainSettings, feeds: Feeds, network: nn.Cell, loss: nn.Cell) -> None:
    """An error that names network, shapes and the cure where one example does not pass, or a class has no output.

    It runs operator by operator: to compile a deep network for it would take longer than all else before the first
    step. Without training mode, normalisation keeps its statistics and dropout draws no numbers.
    """
    inputs, labels = _one_example(feeds)
    training = network.training
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network.set_train(False)
    try:
        outputs = _outputs(settings, network, inputs)
        if not settings.reconstructs:
            _check_classes(settings, feeds, outputs)
        _check_loss(settings, loss, outputs, inputs[0] if settings.reconstructs else labels)
    finally:
        network.set_train(training)
        ms.set_context(mode=ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE)


def _one_example(feeds: Feeds) -> tuple[list[Tensor], Tensor]:
    """Inputs and labels of a batch of one: the epoch's last, before which nothing has to be read."""
    one = cast(Any, replace(cast(Any, feeds.train), batch_size=1, rank=0, ranks=1))
    *inputs, labels = next(one.epoch(0, len(one) - 1))
    return [Tensor(part) for part in inputs], Tensor(labels)


def _outputs(settings: TrainSettings, network: nn.Cell, inputs: list[Tensor]) -> Tensor:
    """What the network makes of an example."""
    try:
        outputs = network(*inputs)
        outputs.asnumpy()  # an error may come only where a value is asked for
    except Exception as error:
        shapes = " and ".join(str(part.shape) for part in inputs)
        raise UserError(
            f"network {settings.network} does not take an example of data.name = {settings.data.name}, of shape "
            f"{shapes}: take another network, or give its sizes in network_options (such as "
            f"--network_options.in_channels 3). It says: {' '.join(message_of(error).split())}"
        ) from error
    return cast(Tensor, outputs)


def _check_classes(settings: TrainSettings, feeds: Feeds, outputs: Tensor) -> None:
    """Each class of the set has an output, not that of the one example alone."""
    count, classes = outputs.shape[-1] if outputs.ndim else 1, max(classes_of(feeds.train), classes_of(feeds.test))
    if count < classes:
        option = "vocab_size" if settings.data.name == "text" else "num_classes"
        raise UserError(
            f"network {settings.network} has {count} outputs, and data.name = {settings.data.name} has {classes} "
            f"classes: give  --network_options.{option} {classes}, or another network"
        )


def _check_loss(settings: TrainSettings, loss: nn.Cell, outputs: Tensor, targets: Tensor) -> None:
    """The loss takes these outputs."""
    try:
        loss(outputs, targets).asnumpy()
    except Exception as error:
        raise UserError(
            f"loss = {settings.loss} does not take outputs of shape {outputs.shape}, which network {settings.network} "
            f"makes of an example, with targets of shape {targets.shape}: take another loss, network or data.name. "
            f"It says: {' '.join(message_of(error).split())}"
        ) from error
