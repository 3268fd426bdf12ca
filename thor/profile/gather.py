"""Unsplit factors, scaled means and gradients of a network's layers, from forward and backward passes.

The taps are those of thor/capture, with one block for each factor. Layers are gathered in groups that fit a memory
limit. Each group is compiled once and run on every batch; its statistics are summed on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from first_order.compiled import CompiledFunction
from thor.capture.attach import attach, left_as_found
from thor.capture.targets import Target
from thor.factors.blocks import Cut
from thor.profile.factor_shape import FactorShape, shapes_of_layer
from thor.runtime import device

#: Copies of a factor that exist at once: the port's Parameter, its gradient, the host's copy and the sum.
_COPIES_ALIVE = 4


@dataclass
class LayerStatistics:
    """One layer's unsplit factors [c, d, d], scaled means [c, d] and gradient [c, O, I (+1)], averaged over batches."""

    name: str
    kind: str
    positions: int  # kernel positions of a convolution, 1 for dense
    a: np.ndarray
    g: np.ndarray
    mean_a: np.ndarray
    mean_g: np.ndarray
    gradient: np.ndarray
    bias: bool  # whether A's last row belongs to the bias

    @property
    def shapes(self) -> tuple[FactorShape, FactorShape]:
        """The shapes of A and G."""
        return shapes_of_layer(self.name, self.a.shape[1], self.g.shape[1], self.a.shape[0], self.bias)


def shapes_of(targets: Sequence[Target]) -> list[FactorShape]:
    """The shapes of A and G of every target, in order."""
    layers = ((t.name, t.a_dim, t.g_dim, t.copies, t.bias is not None) for t in targets)
    return [shape for layer in layers for shape in shapes_of_layer(*layer)]


def bytes_of(target: Target) -> int:
    """Bytes of a layer's two unsplit factors in float32."""
    return 4 * target.copies * (target.a_dim**2 + target.g_dim**2)


def groups_within(targets: Sequence[Target], limit: int) -> list[list[Target]]:
    """Split the layers, in order, into groups whose gathering needs at most ``limit`` bytes.

    Raises:
        MemoryError: if a single layer needs more.
    """
    groups: list[list[Target]] = []
    room = 0
    for target in targets:
        need = _COPIES_ALIVE * bytes_of(target)
        if need > limit:
            raise MemoryError(
                f"layer {target.name} alone needs {need / 2**30:.1f} GiB to be profiled (factors of {target.a_dim} and "
                f"{target.g_dim}), but the limit is {limit / 2**30:.1f} GiB: raise the limit or skip the layer"
            )
        if not groups or need > room:
            groups.append([])
            room = limit
        groups[-1].append(target)
        room -= need
    return groups


class _Slots:
    """Attaches ports to one layer and holds their Parameters, whose gradients are the layer's statistics."""

    def __init__(self, target: Target):
        self.target = target
        self.parameters: list[Parameter] = []
        cuts = [Cut(dim, dim, 1, "block+mean", 1) for dim in (target.a_dim, target.g_dim)]
        sides = []
        for side, cut in zip("ag", cuts, strict=True):
            shapes = ((target.copies, 1, cut.dim, cut.dim), (target.copies, cut.dim, 1), (1,))
            own = [
                Parameter(Tensor(np.zeros(shape, np.float32)), name=f"thor.profile.{target.name}.{side}{index}")
                for index, shape in enumerate(shapes)
            ]
            sides.append(own)
            self.parameters += own
        a_cut, g_cut = cuts
        a_parameters, g_parameters = sides
        order = "position" if target.channel_last else "channel"
        for port in attach(target, a_cut, g_cut, a_parameters, g_parameters, order):
            port.active = True

    def statistics(self, values: list[np.ndarray], weight: np.ndarray, bias: np.ndarray | None) -> LayerStatistics:
        """Build the layer's statistics from the averaged gradients of its port Parameters, weight and bias."""
        a, mean_a, uses_a, g, mean_g, uses_g = values
        copies = self.target.copies
        gradient = weight.reshape(copies, weight.shape[0] // copies, -1)
        if self.target.kind == "conv_transpose" or self.target.transposed:  # A belongs to the rows of the weight
            gradient = gradient.transpose(0, 2, 1)
        if bias is not None:
            gradient = np.concatenate([gradient, bias.reshape(copies, -1, 1)], 2)
        one_order = self.target.kind != "conv" or self.target.channel_last
        positions = 1 if one_order else math.prod(self.target.weight.shape[2:])
        return LayerStatistics(
            self.target.name, self.target.kind, positions, a[:, 0], g[:, 0],
            mean_a[:, :, 0] / np.sqrt(uses_a[0] or 1.0), mean_g[:, :, 0] / np.sqrt(uses_g[0] or 1.0),
            gradient, bias is not None,
        )  # fmt: skip


def gather(
    net: nn.Cell, forward: Callable[..., Any], batches: Callable[[], Iterator[tuple[Tensor, ...]]],
    targets: Sequence[Target], on_batch: Callable[[], None] = lambda: None,
) -> list[LayerStatistics]:  # fmt: skip
    """Statistics of ``targets``, averaged over ``batches()``, for the loss ``forward(*inputs)`` of a batch.

    The ports are removed afterwards. Buffers such as moving averages keep the values that the passes gave them.

    Raises:
        FloatingPointError: if a loss or a statistic is not finite.
        ValueError: if there is no batch.
    """
    with left_as_found(net):
        device.fast_convolutions(net)
        slots = [_Slots(target) for target in targets]
        weights = [target.weight for target in targets] + [t.bias for t in targets if t.bias is not None]
        variables = [*(p for slot in slots for p in slot.parameters), *weights]
        with _compiled(forward, variables) as step:
            sums: list[np.ndarray] = []
            count = 0
            for inputs in batches():
                loss, *fresh = step(*inputs)
                if loss.size != 1:
                    raise ValueError(
                        f"the loss must be one number, but has shape {tuple(loss.shape)}: take the mean over the "
                        f"examples (reduction='mean')"
                    )
                if not np.isfinite(loss.asnumpy()):
                    raise FloatingPointError(f"the loss of batch {count} is {loss.asnumpy()}: nothing can be profiled")
                if not sums:
                    sums = [value.asnumpy().copy() for value in fresh]
                else:
                    for total, value in zip(sums, fresh, strict=True):
                        total += value.asnumpy()
                count += 1
                on_batch()
    if not count:
        raise ValueError("there was no batch to profile with")
    for total in sums:
        total /= count
    for value, variable in zip(sums, variables, strict=True):
        if not np.isfinite(value).all():
            raise FloatingPointError(f"the statistics behind {variable.name} are not finite: nothing can be profiled")
    ports = 6 * len(slots)
    gradients = {id(weight): total for weight, total in zip(weights, sums[ports:], strict=True)}
    return [
        slot.statistics(
            sums[6 * i : 6 * i + 6], gradients[id(slot.target.weight)],
            None if slot.target.bias is None else gradients[id(slot.target.bias)],
        )
        for i, slot in enumerate(slots)
    ]  # fmt: skip


@contextmanager
def _compiled(forward: Callable[..., Any], variables: list[Parameter]) -> Iterator[Any]:
    """A compiled function of a batch that returns the loss and the gradients of ``variables``.

    MindSpore keeps a reference to every function that it has compiled. Therefore the graph is released and the function
    lets go of the network at the end: otherwise each profiled network would stay in memory.
    """
    differentiate = ms.value_and_grad(forward, None, variables)

    def step(*inputs):
        loss, gradients = differentiate(*inputs)
        return (loss,) + gradients

    compiled = CompiledFunction(step)
    try:
        yield compiled
    finally:
        compiled.release()
        differentiate = None


def loss_of(net: nn.Cell, loss_fn: Callable[..., Any] | None) -> Callable[..., Any]:
    """The loss of a batch: of the network's output and the last input; without ``loss_fn`` what the network returns."""

    def with_loss(*inputs):
        return loss_fn(net(*inputs[:-1]), inputs[-1])

    def without_loss(*inputs):
        return net(*inputs)

    return without_loss if loss_fn is None else with_loss


def synthetic_batches(
    shape: tuple[int, ...], classes: int, count: int, seed: int = 0
) -> Callable[[], Iterator[tuple[Tensor, ...]]]:
    """Batches of standard normal inputs and uniform labels, for times and memory; losses are not those of real data."""

    def batches() -> Iterator[tuple[Tensor, ...]]:
        rng = np.random.default_rng(seed)
        for _ in range(count):
            labels = rng.integers(0, classes, shape[0]).astype(np.int32)
            yield Tensor(rng.standard_normal(shape, np.float32)), Tensor(labels)

    return batches
