"""The three splits of a factor on the deep autoencoder: error against epochs and seconds.

    python scripts/bench_splits.py [--epochs 6] [--only "block+mean 128" adam] [--out runs/splits]

Fashion-MNIST, 784-1000-500-250-30 and back, squared error summed over pixels, batch 1000, factors refreshed every 20
steps. The table is printed and written with every raw number as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import thor
from models.autoencoder import autoencoder
from scripts.bench_step import first_order_step, reconstruction
from scripts.data import fashion_mnist

BATCH = 1000
RUNS: dict[str, dict[str, Any] | None] = {
    "adam": None,
    "full": {"block_size": 1024, "split": "block"},
    "block 128": {"block_size": 128, "split": "block"},
    "block 256": {"block_size": 256, "split": "block"},
    "block+mean 128": {"block_size": 128, "split": "block+mean"},
    "block+rank 128": {"block_size": 128, "split": "block+rank"},
}


def images() -> tuple[np.ndarray, np.ndarray]:
    """Training and test pixels in [0, 1], [count, 784]."""
    folder = fashion_mnist.resolve()
    parts = (fashion_mnist.load(folder, split).images for split in ("train", "test"))
    train, test = (part.reshape(len(part), -1).astype(np.float32) / 255 for part in parts)
    return train, test


def build(name: str, arguments: argparse.Namespace) -> tuple[nn.Cell, Callable[..., Tensor]]:
    """The network, the same for every run, and its compiled step."""
    ms.set_seed(arguments.seed)
    np.random.seed(arguments.seed)
    net = autoencoder()
    options = RUNS[name]
    if options is None:
        optimizer = nn.Adam(net.trainable_params(), arguments.adam_lr)
        return net, first_order_step(net, reconstruction, optimizer)
    optimizer = thor.THOR(
        net, arguments.lr, arguments.damping, 0.9, clip=arguments.clip,
        interval=thor.GrowingInterval(arguments.first_interval, 20, arguments.growth),
        refresh=thor.TraceRule.thor_nt(), factor_decay=arguments.decay, **options,
    )  # fmt: skip
    return net, thor.TrainStep(net, reconstruction, optimizer)


def train(name: str, data: tuple[np.ndarray, np.ndarray], arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Test error and training seconds (compilation of the first step left out) after each epoch."""
    train_images, test_images = data
    net, step = build(name, arguments)
    evaluate = ms.jit(evaluation(net))
    curve, seconds = [], 0.0
    for epoch in range(arguments.epochs):
        order = np.random.default_rng((arguments.seed, epoch)).permutation(len(train_images))
        start = time.perf_counter()
        for index, first in enumerate(range(0, len(order), BATCH)):
            batch = Tensor(train_images[order[first : first + BATCH]])
            loss = step(batch, batch)
            if epoch == 0 and index < 2:  # the two compilations
                loss.asnumpy()
                start = time.perf_counter()
        loss.asnumpy()
        seconds += time.perf_counter() - start
        errors = [
            float(evaluate(Tensor(test_images[i : i + BATCH])).asnumpy()) for i in range(0, len(test_images), BATCH)
        ]
        curve.append({"epoch": epoch + 1, "seconds": seconds, "test_error": float(np.mean(errors))})
        print(
            f"  {name:16} epoch {epoch + 1:2}  {seconds:6.1f} s  test error {curve[-1]['test_error']:.2f}", flush=True
        )
        if not np.isfinite(curve[-1]["test_error"]):
            break
    return curve


def evaluation(net: nn.Cell) -> Callable[[Tensor], Tensor]:
    """The reconstruction error of a batch, to be compiled."""

    def evaluate(batch):
        return reconstruction(net(batch), batch)

    return evaluate


def main() -> None:
    """Train every approximation, print the table, write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--adam-lr", type=float, default=1e-3)
    parser.add_argument("--damping", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=None)
    parser.add_argument("--first-interval", type=int, default=2, help="grows to 20 by --growth")
    parser.add_argument("--growth", type=float, default=1.2)
    parser.add_argument("--decay", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/splits"))
    arguments = parser.parse_args()
    thor.device.select("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    data = images()
    curves = {name: train(name, data, arguments) for name in arguments.only}
    print(
        f"{'approximation':18}{'s/epoch':>9}" + "".join(f"{'epoch ' + str(e + 1):>10}" for e in range(arguments.epochs))
    )
    for name, curve in curves.items():
        row = "".join(f"{point['test_error']:10.2f}" for point in curve)
        print(f"{name:18}{curve[-1]['seconds'] / len(curve):9.1f}{row}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = {"settings": {k: str(v) for k, v in vars(arguments).items()}, "curves": curves}
    (arguments.out / "splits.json").write_text(json.dumps(report, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
