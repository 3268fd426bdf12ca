"""Build device, data, network and loss from settings, for training and evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import mindspore as ms
from mindspore import nn

from scripts.data.factory import Feeds, open_feeds
from scripts.settings.train_settings import TrainSettings
from scripts.training.networks import build_loss, build_network
from thor.runtime.errors import UserError


@dataclass(frozen=True)
class Parts:
    """The objects that a configuration describes."""

    device: str
    feeds: Feeds
    network: nn.Cell
    loss: nn.Cell


def build(settings: TrainSettings, feeds: Feeds | None = None, device: str | None = None) -> Parts:
    """Set device, mode and seed, then build data, network and loss.

    Args:
        settings: The configuration.
        feeds: The data, if they are already open.
        device: The result of `select_device`, if it was already called: MindSpore's target can be set only once.
    """
    device = device or select_device(settings.device)
    ms.set_context(mode=ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(settings.seed)
    feeds = feeds or open_feeds(settings)
    network = build_network(settings, feeds.network_options)
    network.set_train()
    return Parts(device, feeds, network, build_loss(settings))


def make_convolutions_fast(network: nn.Cell) -> None:
    """Replace slow convolution kernels by patches times weights, as thor.THOR does for the layers that it captures."""
    from thor.runtime.device import fast_convolutions

    fast_convolutions(network)


def select_device(name: str) -> str:
    """Set MindSpore's target and return its name; UserError if it is not available."""
    import thor

    try:
        return thor.device.select(name)
    except ValueError as error:
        raise UserError(str(error)) from error


def count_steps(settings: TrainSettings, batches: int) -> int:
    """Steps per epoch, rounded down to a multiple of the accumulation; UserError if that is 0."""
    steps = batches // settings.accumulation * settings.accumulation
    if steps == 0:
        raise UserError(
            f"batch_size = {settings.batch_size} with accumulation = {settings.accumulation}: "
            f"the training examples make only {batches} batches an epoch"
        )
    return steps
