"""Settings put into effect: device, data, network and loss; what training, evaluation and export have in common."""

from __future__ import annotations

import resource
from dataclasses import dataclass

import mindspore as ms
from mindspore import nn

from scripts.errors import UserError
from scripts.feeds import Feeds, open_feeds
from scripts.networks import build_loss, build_network
from scripts.settings import TrainSettings

RECURSION_LIMIT = 10_000
STACK = 256 * 2**20


@dataclass(frozen=True)
class Parts:
    """What a configuration stands for."""

    device: str
    feeds: Feeds
    network: nn.Cell
    loss: nn.Cell


def build(settings: TrainSettings, feeds: Feeds | None = None) -> Parts:
    """Set device, mode and seed, then make data, network and loss.

    Args:
        settings: The configuration.
        feeds: The data, where they are open already.
    """
    device = select_device(settings.device)
    allow_deep_graphs()
    ms.set_context(mode=ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(settings.seed)
    feeds = feeds or open_feeds(settings)
    network = build_network(settings, feeds.network_options)
    network.set_train()
    return Parts(device, feeds, network, build_loss(settings))


def allow_deep_graphs() -> None:
    """Let MindSpore's compiler follow as many nested calls as THOR's step over 54 layers takes; its default is 1000.

    It follows them on the stack of this process, which the system lets grow to 8 MiB unless it is told otherwise.
    """
    ms.set_recursion_limit(RECURSION_LIMIT)
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft < STACK:
        room = STACK if hard == resource.RLIM_INFINITY else min(STACK, hard)
        resource.setrlimit(resource.RLIMIT_STACK, (room, hard))


def make_convolutions_fast(network: nn.Cell) -> None:
    """As thor.THOR does for the layers that it captures: patches times weights where MindSpore's kernel is slow."""
    from thor.device import fast_convolutions

    fast_convolutions(network)


def select_device(name: str) -> str:
    """Set MindSpore's target."""
    import thor

    try:
        return thor.device.select(name)
    except ValueError as error:
        raise UserError(str(error)) from error


def whole_steps(settings: TrainSettings, batches: int) -> int:
    """Steps an epoch, a multiple of the accumulation; an error where there is none."""
    steps = batches // settings.accumulation * settings.accumulation
    if steps == 0:
        raise UserError(
            f"batch_size = {settings.batch_size} with accumulation = {settings.accumulation}: "
            f"the training examples make only {batches} batches an epoch"
        )
    return steps
