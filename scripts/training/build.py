"""Settings put into effect: device, data, network and loss; what training, evaluation and export have in common."""

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
    """What a configuration stands for."""

    device: str
    feeds: Feeds
    network: nn.Cell
    loss: nn.Cell


def build(settings: TrainSettings, feeds: Feeds | None = None, device: str | None = None) -> Parts:
    """Set device, mode and seed, then make data, network and loss.

    Args:
        settings: The configuration.
        feeds: The data, where they are open already.
        device: What `select_device` gave, where it was called already: MindSpore takes it once.
    """
    device = device or select_device(settings.device)
    ms.set_context(mode=ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(settings.seed)
    feeds = feeds or open_feeds(settings)
    network = build_network(settings, feeds.network_options)
    network.set_train()
    return Parts(device, feeds, network, build_loss(settings))


def make_convolutions_fast(network: nn.Cell) -> None:
    """As thor.THOR does for the layers that it captures: patches times weights where MindSpore's kernel is slow."""
    from thor.runtime.device import fast_convolutions

    fast_convolutions(network)


def select_device(name: str) -> str:
    """Set MindSpore's target."""
    import thor

    try:
        return thor.device.select(name)
    except ValueError as error:
        raise UserError(str(error)) from error


def count_steps(settings: TrainSettings, batches: int) -> int:
    """Steps an epoch, a multiple of the accumulation; an error where there is none."""
    steps = batches // settings.accumulation * settings.accumulation
    if steps == 0:
        raise UserError(
            f"batch_size = {settings.batch_size} with accumulation = {settings.accumulation}: "
            f"the training examples make only {batches} batches an epoch"
        )
    return steps
