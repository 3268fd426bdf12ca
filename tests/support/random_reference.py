"""What THOR must find in a random network, computed without it: from a twin's records and the dense NumPy reference."""

from __future__ import annotations

from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from tests.support import reference
from tests.support.random_networks import Layer, Plan, build, loss_fn


@dataclass
class Pass:
    """One forward and backward pass: (layer, input, output gradient) of each call, and the weights' gradients."""

    calls: list[tuple[Layer, np.ndarray, np.ndarray]]
    gradients: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]


@dataclass
class Sums:
    """A factor's whole matrix and the scaled mean of its rows, summed over the ``uses`` of its layer."""

    matrix: np.ndarray
    mean: np.ndarray
    uses: int = 1

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.matrix + other.matrix, self.mean + other.mean, self.uses + other.uses)


def output_shape(plan: Plan) -> tuple[int, ...]:
    """Of the network, which its last layer determines."""
    last = plan.layers[-1].outputs
    kind = plan.layers[0].kind
    return (plan.shape[0], last) if kind == "conv" else (*plan.shape[: None if kind == "embedding" else -1], last)


def run_twin(plan: Plan, x: Tensor, target: Tensor) -> Pass:
    """Run an untouched twin of the network, and differentiate by zeros that are added to each layer's output."""
    net = build(plan, apart=True)
    weights = net.trainable_params()
    values = {p.name: p.asnumpy().copy() for p in net.get_parameters()}
    net.seen = []
    net(x)
    seen, net.seen = net.seen, None
    net.zeros = tuple(ops.zeros_like(output) for _, _, output in seen)

    def forward(*zeros):
        net.zeros = zeros
        return loss_fn(net(x), target)

    by_zeros, by_weights = ms.grad(forward, tuple(range(len(seen))), weights)(*net.zeros)
    net.zeros = None
    by_zeros = by_zeros if isinstance(by_zeros, tuple) else (by_zeros,)
    # PyNative casts a float16 Cell's inputs in its operators: what reaches the layer is not rounded yet
    calls = [(layer, i.asnumpy(), g.asnumpy()) for (layer, i, _), g in zip(seen, by_zeros, strict=True)]
    found = {w.name: g.asnumpy().astype(np.float64) for w, g in zip(weights, by_weights, strict=True)}
    return Pass(calls, found, values)


def first(values: np.ndarray, share: float) -> np.ndarray:
    """A share of the examples, at least one."""
    return values[: max(1, int(len(values) * share))]


def whole_factors(
    layer: Layer, x: np.ndarray, g: np.ndarray, share: float, examples: int | None
) -> list[tuple[Sums, Sums]]:
    """(A, G) of one call, a pair per group; an embedding's A as the vector on its diagonal.

    With a ``share`` of the examples those of a batch that has no others: its mean loss gives them larger gradients.
    The loss has ``examples`` terms; None if every row with a gradient is one.
    """
    g = g.astype(np.float64)
    if layer.kind == "conv":
        part = first(g, share)
        return _of_convolution(layer, first(x, share), part * (len(g) / len(part)))
    rows, inputs = g.reshape(-1, layer.outputs), x.reshape(len(g.reshape(-1, layer.outputs)), -1)
    counts = rows.any(1) if examples is None else np.ones(len(rows), bool)
    kept = first(counts, share)
    total, count = max(1, counts.sum()), max(1, kept.sum())
    terms = total if examples is None else examples
    used = first(rows, share)[kept]
    weight = terms * (total / count)  # of the sum over the rows that are used
    of_g = Sums(weight * used.T @ used, np.sqrt(weight / count) * used.sum(0))
    if layer.kind == "embedding":
        frequencies = np.bincount(x.reshape(-1)[counts], minlength=layer.inputs) / total
        return [(Sums(frequencies, frequencies), of_g)]
    seen = first(inputs, share)[kept].astype(np.float64)
    seen = reference.with_ones(seen) if layer.homogeneous else seen
    return [(Sums(seen.T @ seen / count, seen.sum(0) / count), of_g)]


def _of_convolution(layer: Layer, x: np.ndarray, g: np.ndarray) -> list[tuple[Sums, Sums]]:
    """The mean of A's rows is scaled with the root of P, that of G's with B (thor.factors.scaled_mean)."""
    k = layer.kernel
    seen = reference.patches(x, k.size, k.stride, k.dilation, k.pads(*x.shape[2:]))
    pairs = reference.conv_factors(seen, g, k.group, layer.homogeneous)
    positions, inputs = seen.shape[1] * seen.shape[2], layer.inputs // k.group
    outputs = layer.outputs // k.group
    found = []
    for index, (of_a, of_g) in enumerate(pairs):
        mean = seen[:, :, :, index * inputs : (index + 1) * inputs].mean((0, 1, 2)).reshape(-1)
        mean = np.sqrt(positions) * (np.append(mean, 1.0) if layer.homogeneous else mean)
        mean_g = g[:, index * outputs : (index + 1) * outputs].sum((0, 2, 3)) / positions
        found.append((Sums(of_a, mean), Sums(of_g, mean_g)))
    return found


def factors_of(plan: Plan, made: Pass, layer_at: int) -> list[tuple[Sums, Sums]]:
    """(A, G) of a layer of the plan per group: A's mean over its calls, and G's sum."""
    call = sum(1 if y.use == "once" else 2 for y in plan.layers[:layer_at])
    layer = plan.layers[layer_at]
    examples = None if any(y.kind == "embedding" for y in plan.layers) else plan.shape[0]
    total = whole_factors(*made.calls[call], plan.share, examples)
    if layer.use != "once":
        again = whole_factors(*made.calls[call + 1], plan.share, examples)
        total = [(a + c, b + d) for (a, b), (c, d) in zip(total, again, strict=True)]
    return [(Sums(a.matrix / a.uses, a.mean / np.sqrt(a.uses), a.uses), g) for a, g in total]


def block_size(dim: int, largest: int) -> int:
    """The size of even blocks, rounded up to eights from 32 on where they do not divide (thor/factors/blocks.py)."""
    size = -(-dim // -(-dim // largest))
    return min(largest, -(-size // 8) * 8) if size >= 32 and dim % size else size


def position_order(layer: Layer) -> np.ndarray:
    """Where each of A's coordinates stands if kernel positions come before channels; the bias stays last."""
    area, channels = int(np.prod(layer.kernel.size)), layer.inputs // layer.kernel.group
    found = np.arange(channels * area).reshape(channels, area).T.reshape(-1)
    return np.append(found, channels * area) if layer.homogeneous else found


def split(sums: Sums, plan: Plan, bias: bool, probe: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """(D, L) whose sum the plan inverts in place of the factor."""
    matrix, dim = sums.matrix, len(sums.matrix)
    if dim <= plan.block_size:
        return matrix, np.zeros_like(matrix)
    size = block_size(dim, plan.block_size)
    if plan.split == "block":
        return reference.block_diagonal(matrix, size), np.zeros_like(matrix)
    if plan.split == "block+rank":
        return reference.with_rank(matrix, probe, size)
    mean = sums.mean / np.sqrt(sums.uses)
    if bias:
        return reference.with_mean_and_bias(matrix, mean, block_size(dim - 1, plan.block_size))
    return reference.with_mean(matrix, mean, size)


def probe_condition(matrix: np.ndarray, probe: np.ndarray) -> float:
    """Of Q^T A Q, without the eigenvalues that are zero but for float64's rounding; inf if float32 cannot tell."""
    values = np.linalg.eigvalsh(probe.T @ matrix @ probe)
    if values[-1] <= 0:
        return 1.0
    ratios = values[values > 1e-12 * values[-1]] / values[-1]
    return float(1 / ratios.min()) if ratios.min() > 1e-4 else np.inf
