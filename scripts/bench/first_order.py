"""Step times of first_order's optimizers, as ratios to those of mindspore.nn, from one interleaved run.

    python scripts/bench/first_order.py [--lists resnet50 small] [--rounds 15] [--out bench.json]

A step is the optimizer's compiled update with given gradients; no forward or backward pass is timed. ``nn.AdaFactor``
is another algorithm than Adafactor here (it has its own scale and clipping rules); it is compared because it is
MindSpore's memory-saving optimizer.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # errors only: MindSpore warns whenever a function is compiled again
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from first_order import Adafactor, Adam, Momentum
from first_order.compiled import CompiledFunction
from scripts.common.arguments import count, file_to_write
from scripts.common.atomic_write import write_results

Shape = tuple[int, ...]
PAIRS: dict[str, tuple[Callable[..., nn.Optimizer], Callable[..., nn.Optimizer]]] = {
    "Adam": (lambda weights: Adam(weights, 1e-5), lambda weights: nn.Adam(weights, 1e-5)),
    "Momentum": (lambda weights: Momentum(weights, 1e-5), lambda weights: nn.Momentum(weights, 1e-5, 0.9)),
    "Adafactor": (lambda weights: Adafactor(weights, 1e-5), lambda weights: nn.AdaFactor(weights)),
}


def resnet50() -> list[Shape]:
    """Shapes of ResNet-50's 161 trainable tensors, from the first convolution to the classifier."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers = [(width, channels, 1), (width, width, 3), (4 * width, width, 1)]
            layers += [(4 * width, channels, 1)] if block == 0 else []
            for outputs, inputs, kernel in layers:
                shapes += [(outputs, inputs, kernel, kernel), (outputs,), (outputs,)]
            channels = 4 * width
    return [*shapes, (1000, channels), (1000,)]


def small() -> list[Shape]:
    """500 tensors that are so small that the fixed costs of operators dominate."""
    kinds: list[Shape] = [(16, 16), (32, 8), (64,), (8, 8, 3, 3), ()]
    return [kinds[i % len(kinds)] for i in range(500)]


LISTS = {"resnet50": resnet50, "small": small}


def compiled(make: Callable[..., nn.Optimizer], shapes: list[Shape]) -> tuple[Callable[..., Any], nn.Optimizer]:
    """Return a compiled step, a function of the gradients, and its optimizer, over new weights."""
    rng = np.random.default_rng(0)
    weights = [
        Parameter(Tensor(np.asarray(rng.standard_normal(shape), np.float32)), name=f"weight{i}")
        for i, shape in enumerate(shapes)
    ]
    optimizer = make(weights)

    def step(*gradients):
        return optimizer(gradients)

    return CompiledFunction(step), optimizer


def timed(step: Callable[..., Any], optimizer: nn.Optimizer, gradients: list[Tensor]) -> float:
    """Milliseconds of one step; reading the last weight waits for it."""
    start = time.perf_counter()
    step(*gradients)
    optimizer.parameters[-1].asnumpy()
    return (time.perf_counter() - start) * 1e3


def state_bytes(optimizer: nn.Optimizer, weights: set[str]) -> int:
    """Bytes of an optimizer's state: its Parameters other than the weights (named in `weights`) and scalars."""
    return sum(p.nbytes for p in optimizer.get_parameters() if p.name not in weights and p.size > 1)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Median milliseconds of each optimizer ("ours") and of its counterpart ("nn"), interleaved, and their ratio."""
    shapes, rng = LISTS[name](), np.random.default_rng(1)
    gradients = [Tensor(np.asarray(rng.standard_normal(shape), np.float32)) for shape in shapes]
    result: dict[str, Any] = {}
    for kind, pair in PAIRS.items():
        sides = [compiled(make, shapes) for make in pair]
        times: list[list[float]] = [[], []]
        for index in range(rounds + 2):
            for side in ((0, 1), (1, 0))[index % 2]:
                milliseconds = timed(*sides[side], gradients)
                if index >= 2:  # compilation and warm-up
                    times[side].append(milliseconds)
        ours, theirs = (float(np.median(t)) for t in times)
        result[kind] = {"ours": ours, "nn": theirs, "ratio": ours / theirs}
    return result


def matrix_state() -> dict[str, float]:
    """Bytes of Adafactor's state as a share of Adam's, for matrices of several shapes."""
    shares = {}
    for shape in ((1000, 2048), (4096, 1024), (512, 512), (256, 256)):
        sizes = []
        for make in (PAIRS["Adafactor"][0], PAIRS["Adam"][0]):
            optimizer = make([Parameter(Tensor(np.zeros(shape, np.float32)), name="weight")])
            sizes.append(state_bytes(optimizer, {"weight"}))
        shares["x".join(map(str, shape))] = sizes[0] / sizes[1]
    return shares


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", nargs="+", default=list(LISTS), choices=list(LISTS))
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--out", type=file_to_write)
    arguments = parser.parse_args()
    ms.set_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    results: dict[str, Any] = {}
    for name in arguments.lists:
        results[name] = measure(name, arguments.rounds)
        for kind, row in results[name].items():
            print(f"{name:9} {kind:10} {row['ours']:8.1f} ms   nn {row['nn']:8.1f} ms   {row['ratio']:.2f} x")
        write_results(arguments.out, results)
    results["state"] = matrix_state()
    for shape, share in results["state"].items():
        print(f"state of a {shape} matrix: {100 * share:.2f} % of Adam's")
    write_results(arguments.out, results)


if __name__ == "__main__":
    main()
