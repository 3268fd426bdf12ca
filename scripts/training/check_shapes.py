"""Check that data, network and loss fit together, with one example, before training starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import mindspore as ms
from mindspore import Tensor, nn

from scripts.data.factory import Feeds, classes_of
from scripts.settings.train_settings import TrainSettings
from thor.runtime.errors import UserError, message_of


def check_fit(settings: TrainSettings, feeds: Feeds, network: nn.Cell, loss: nn.Cell) -> None:
    """Run one example through network and loss; UserError with shapes and advice if it fails or a class has no output.

    The network runs operator by operator, because compiling a deep network for one example takes too long. It runs in
    evaluation mode, so that normalisation statistics and dropout's random state do not change.
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
    """Inputs and labels of a batch of one: the epoch's last, which can be read without the ones before."""
    one = cast(Any, replace(cast(Any, feeds.train), batch_size=1, rank=0, ranks=1))
    *inputs, labels = next(one.epoch(0, len(one) - 1))
    return [Tensor(part) for part in inputs], Tensor(labels)


def _outputs(settings: TrainSettings, network: nn.Cell, inputs: list[Tensor]) -> Tensor:
    """The network's output for an example; UserError if the network fails, or returns anything but one tensor."""
    try:
        outputs = network(*inputs)
        if isinstance(outputs, Tensor):
            outputs.asnumpy()  # MindSpore may raise an error only when the value is read
    except Exception as error:
        shapes = " and ".join(str(part.shape) for part in inputs)
        raise UserError(
            f"network {settings.network} does not take an example of data.name = {settings.data.name}, of shape "
            f"{shapes}: take another network, or give its sizes in network_options (such as "
            f"--network_options.in_channels 3). It says: {' '.join(message_of(error).split())}"
        ) from error
    if isinstance(outputs, Tensor):
        return outputs
    several = isinstance(outputs, tuple | list)
    found = f"{len(outputs)} output{'s' * (len(outputs) != 1)} in a {type(outputs).__name__}" if several else (
        f"a {type(outputs).__name__}"
    )  # fmt: skip
    raise UserError(
        f"network {settings.network} returns {found}, and loss = {settings.loss} takes one tensor: give  --network "
        f"module:callable  with a Cell that returns only the output to train on, such as  return self.net(x)[0]"
    )


def _check_classes(settings: TrainSettings, feeds: Feeds, outputs: Tensor) -> None:
    """Check that the network has an output for every class of the data set."""
    count, classes = outputs.shape[-1] if outputs.ndim else 1, max(classes_of(feeds.train), classes_of(feeds.test))
    if count < classes:
        option = "vocab_size" if settings.data.name == "text" else "num_classes"
        raise UserError(
            f"network {settings.network} has {count} outputs, and data.name = {settings.data.name} has {classes} "
            f"classes: give  --network_options.{option} {classes}, or another network"
        )


def _check_loss(settings: TrainSettings, loss: nn.Cell, outputs: Tensor, targets: Tensor) -> None:
    """Check that the loss accepts these outputs."""
    try:
        loss(outputs, targets).asnumpy()
    except Exception as error:
        raise UserError(
            f"loss = {settings.loss} does not take outputs of shape {outputs.shape}, which network {settings.network} "
            f"makes of an example, with targets of shape {targets.shape}: take another loss, network or data.name. "
            f"It says: {' '.join(message_of(error).split())}"
        ) from error
