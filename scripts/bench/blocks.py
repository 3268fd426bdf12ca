"""Trains with several block sizes and splits: error or accuracy per epoch, seconds per epoch and per refresh.

    python scripts/bench/blocks.py --task autoencoder [--epochs 5] [--runs "block+mean 128" "block 64" full adam]
    python scripts/bench/blocks.py --task smallconv

A run is a split and a block size ("block+mean 128"), "full" (every factor is one block), or a first-order optimizer.
The two tasks are on Fashion-MNIST. *autoencoder*: 784-1000-500-250-30 and back, squared error summed over pixels, batch
1000, refresh every 10 steps growing to 20. *smallconv*: the quickstart's network and recipe, batch 128. There is no
trace test: every candidate refreshes. All numbers are written as JSON after each run, and a table is printed at the
end. A run whose loss or metric is not finite is recorded as broken, and the others go on.

After the first epoch of the first first-order run, its network is profiled. At the end, each of the profiler's measures
is compared with the trained results, as a rank correlation over the runs with a split that are not broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from scipy.stats import spearmanr

import thor
from first_order.compiled import CompiledFunction
from models.autoencoder import autoencoder
from models.smallconv import smallconv
from scripts.bench.step import first_order_step, reconstruction
from scripts.common.arguments import count, seed
from scripts.common.atomic_write import write_atomically
from scripts.data import fashion_mnist
from thor.factors.blocks import SPLITS
from thor.profile.gather import loss_of
from thor.profile.measure import Task, measure
from thor.profile.profile_file import Profile

ONE_BLOCK = 2**20  # a block size that no factor exceeds
FIRST_ORDER = ("adam", "momentum")
DEFAULT_RUNS = ["adam", "full", "block 128", "block 256", "block+mean 128", "block+rank 128"]


@dataclass(frozen=True)
class Work:
    """A task: network, loss, and the settings that all its runs share."""

    build: Callable[[], nn.Cell]
    loss: Callable[..., Tensor]
    batch: int
    rate: float
    damping: float
    clip: float
    interval: thor.GrowingInterval
    first_order_rates: dict[str, float]
    metric: str


TASKS = {
    "autoencoder": Work(
        autoencoder, reconstruction, 1000, 1.0, 10.0, 1.0, thor.GrowingInterval(10, 20, 1.2),
        {"adam": 1e-3, "momentum": 1e-3}, "test error",
    ),
    "smallconv": Work(
        smallconv, nn.CrossEntropyLoss(), 128, 0.02, 0.03, 1e-3, thor.GrowingInterval(20, 469, 1.2),
        {"adam": 1e-3, "momentum": 0.05}, "test accuracy",
    ),
}  # fmt: skip


def load(task: str) -> list[np.ndarray]:
    """Load training inputs, training targets, test inputs and test targets of a task."""
    folder = fashion_mnist.resolve()
    arrays = []
    for split in ("train", "test"):
        part = fashion_mnist.load(folder, split)
        pixels = part.images.astype(np.float32) / 255
        if task == "autoencoder":
            arrays += [pixels.reshape(len(pixels), -1)] * 2
        else:
            arrays += [pixels[:, None], part.labels.astype(np.int32)]
    return arrays


class Run:
    """A network with the same initial weights in every run, its step, and the seconds of its refreshes."""

    def __init__(self, name: str, work: Work, seed: int):
        ms.set_seed(seed)
        np.random.seed(seed)
        self.net = work.build()
        self.refresh_seconds: list[float] = []
        self.step: Callable[..., Tensor]
        if name in FIRST_ORDER:
            weights, rate = self.net.trainable_params(), work.first_order_rates[name]
            optimizer = nn.Adam(weights, rate) if name == "adam" else nn.Momentum(weights, rate, 0.9)
            self.step = first_order_step(self.net, work.loss, optimizer)
            return
        second = thor.THOR(
            self.net, work.rate, work.damping, 0.9, clip=work.clip, interval=work.interval,
            refresh=thor.TraceRule.thor_nt(), factor_interval=10 if work.batch < 1000 else None, **options_of(name),
        )  # fmt: skip
        self.refresh_seconds = second.refresher.method.seconds
        self.step = thor.TrainStep(self.net, work.loss, second)


def options_of(name: str) -> dict[str, Any]:
    """THOR's options for a run's name."""
    split, _, size = name.partition(" ")
    return {"block_size": ONE_BLOCK, "split": "block"} if name == "full" else {"block_size": int(size), "split": split}


def checked_run(name: str) -> str:
    """Return a run's name if it is valid; the error lists the valid ones."""
    split, _, size = name.partition(" ")
    if name in (*FIRST_ORDER, "full") or (split in SPLITS and size.isdigit() and int(size) > 0):
        return name
    raise argparse.ArgumentTypeError(f"{name!r}: give one of {', '.join((*FIRST_ORDER, 'full'))}, or a split and a "
                                     f'block size as in "block+mean 128"')  # fmt: skip


def train(
    name: str, work: Work, data: list[np.ndarray], epochs: int, seed: int, after_first: Callable[[nn.Cell], None]
) -> dict[str, Any]:
    """Train, and return the metric and the training seconds, without steps that compile, after each epoch.

    A run whose loss or metric is not finite ends with the epoch before; `broken` says why.
    """
    run = Run(name, work, seed)
    result: dict[str, Any] = {"curve": [], "refresh_seconds": run.refresh_seconds}
    try:
        for point in epochs_of(run, work, data, epochs, seed):
            result["curve"].append(point)
            told = f"epoch {point['epoch']:2}  {point['seconds']:6.1f} s  {work.metric} {point['value']:.4f}"
            print(f"  {name:16} {told}", flush=True)
            if point["epoch"] == 1:
                after_first(run.net)
    except FloatingPointError as error:
        print(f"  {name:16} broken: {error}", flush=True)
        result["broken"] = str(error)
    return result


def compiled(step: Callable[..., Tensor]) -> int:
    """Number of graphs that a TrainStep has compiled; 0 for other steps, which compile only at their first call."""
    return step.graphs if isinstance(step, thor.TrainStep) else 0


def epochs_of(run: Run, work: Work, data: list[np.ndarray], epochs: int, seed: int) -> Iterator[dict[str, Any]]:
    """Train, and yield the metric and the seconds so far after each epoch."""
    inputs, targets, test_inputs, test_targets = data
    evaluate = CompiledFunction(evaluation(run.net, work))
    seconds = 0.0
    for epoch in range(epochs):
        run.net.set_train(True)
        order = np.random.default_rng((seed, epoch)).permutation(len(inputs))
        start = time.perf_counter()
        for index, first in enumerate(range(0, len(order) - work.batch + 1, work.batch)):
            rows = order[first : first + work.batch]
            graphs, begin = compiled(run.step), time.perf_counter()
            loss = run.step(Tensor(inputs[rows]), Tensor(targets[rows]))
            if compiled(run.step) > graphs or (epoch, index) == (0, 0):
                loss.asnumpy()
                start += time.perf_counter() - begin
        last = float(loss.asnumpy())
        seconds += time.perf_counter() - start
        run.net.set_train(False)
        values = [
            float(evaluate(Tensor(test_inputs[i : i + 1000]), Tensor(test_targets[i : i + 1000])).asnumpy())
            for i in range(0, len(test_inputs), 1000)
        ]
        value = float(np.mean(values))
        if not np.isfinite([value, last]).all():  # a first-order step skips non-finite updates without an error
            raise FloatingPointError(f"after epoch {epoch + 1} {work.metric} is {value}, the loss {last}")
        yield {"epoch": epoch + 1, "seconds": seconds, "value": value}


def profile(net: nn.Cell, work: Work, data: list[np.ndarray], sizes: list[int]) -> Profile:
    """The profiler's measures of a network in training, over four batches."""
    batches = [
        (Tensor(data[0][i * work.batch : (i + 1) * work.batch]), Tensor(data[1][i * work.batch : (i + 1) * work.batch]))
        for i in range(4)
    ]
    task = Task(net=net, forward=loss_of(net, work.loss), batches=lambda: iter(batches), dims=sizes,
                damping=work.damping, describe={"batches": 4, "source": "training"})  # fmt: skip
    return measure(task)


def predictions(found: Profile, results: dict[str, Any], better: float) -> dict[str, float]:
    """Spearman's rank correlation of each measure with the final metric, over the unbroken runs that have a split.

    ``better`` is 1 if a higher metric is better, else -1, so that a correlation of 1 always means a perfect ranking.
    """
    rows, values = [], []
    for name, result in results.items():
        split, _, size = name.partition(" ")
        if split in SPLITS and "broken" not in result:
            at = found.dims.index(int(size))
            errors = [factor.error[split][at] for factor in found.factors]
            cosines = [layer.cosine[split][at] for layer in found.layers]
            rows.append((found.kept()[at], -np.mean(errors), np.mean(cosines), np.min(cosines)))
            values.append(better * result["curve"][-1]["value"])
    if len(rows) < 2:
        return {}
    names = ("kept share (the paper's L)", "mean error", "mean cosine", "smallest cosine")
    return {
        name: float(spearmanr(column, values)[0]) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def evaluation(net: nn.Cell, work: Work) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function, to be compiled, that computes the mean metric of a batch."""
    loss, accuracy = work.loss, work.metric == "test accuracy"

    def evaluate(x, y):
        output = net(x)
        if accuracy:
            return (output.argmax(-1).astype(ms.int32) == y).astype(ms.float32).mean()
        return loss(output, y)

    return evaluate


def main() -> None:
    """Train every run, print the table, write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), default="autoencoder")
    parser.add_argument("--epochs", type=count, default=5)
    parser.add_argument("--runs", nargs="+", type=checked_run, default=DEFAULT_RUNS)
    parser.add_argument("--seed", type=seed, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/blocks"))
    arguments = parser.parse_args()
    thor.device.select("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    work, data = TASKS[arguments.task], load(arguments.task)
    sizes = sorted({int(name.partition(" ")[2]) for name in arguments.runs if " " in name})
    found: list[Profile] = []
    results: dict[str, Any] = {}
    report: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(arguments).items()}, "results": results}
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{arguments.task}.json"
    for name in arguments.runs:

        def after_first(net: nn.Cell, name: str = name) -> None:
            if name in FIRST_ORDER and len(sizes) > 1 and not found:
                found.append(profile(net, work, data, sizes))
                found[0].save(arguments.out / f"{arguments.task}-profile.json")

        results[name] = train(name, work, data, arguments.epochs, arguments.seed, after_first)
        write_atomically(path, json.dumps(report, indent=2))
    heads = "".join(f"{'epoch ' + str(e + 1):>10}" for e in range(arguments.epochs))
    print(f"{work.metric:18}{'s/epoch':>9}{'ms/refresh':>12}{heads}")
    for name, result in results.items():
        curve, refreshes = result["curve"], result["refresh_seconds"]
        refresh = f"{np.median(refreshes) * 1e3:12.1f}" if refreshes else f"{'':12}"
        row = "".join(f"{point['value']:10.4f}" for point in curve) + ("    broken" if "broken" in result else "")
        seconds = f"{curve[-1]['seconds'] / len(curve):9.1f}" if curve else f"{'':9}"
        print(f"{name:18}{seconds}{refresh}{row}")
    if found:
        report["rank_correlations"] = predictions(found[0], results, 1.0 if work.metric == "test accuracy" else -1.0)
        for measure_name, value in report["rank_correlations"].items():
            print(f"rank correlation with training: {measure_name:28}{value:6.2f}")
        write_atomically(path, json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
