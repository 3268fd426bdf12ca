"""What a step costs: Momentum, THOR's plain step, its curvature step, its refresh, as ratios of one interleaved run.

    python scripts/bench/step.py [--network resnet20 lenet autoencoder bert] [--rounds 15] [--out bench.json]

Two baselines: *Momentum* is ``nn.Momentum`` in the same kind of compiled step as THOR's (with the finite check, whose
branch makes it faster on a CPU); *TrainOneStepCell* is MindSpore's own step. Ratios are to the first, the faster one,
round by round, and their median over the rounds counts.
*Amortised* is the mean step when every ``--interval`` refreshes all layers and gathers factors ten times.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only, before it is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import thor
from first_order.checks import number
from models.autoencoder import autoencoder
from models.bert import bert_tiny
from models.cross_entropy import CrossEntropy
from models.lenet import lenet5
from models.resnet import resnet50
from models.resnet_cifar import resnet8, resnet20
from scripts.common.arguments import count, file_to_write
from scripts.common.atomic_write import write_results
from scripts.common.memory_use import peak_memory as own_peak
from thor.distributed.reduce import mean_over_ranks
from thor.runtime.parameters import write
from thor.settings.gathering import gathered_every
from thor.step.finite_check import looker

NEVER = 2**31 - 1
SPIN_UP = 2  # steps of each kind that compile and warm up
CLASSIFIERS: dict[str, tuple[Callable[[], nn.Cell], int, tuple[int, int, int, int]]] = {
    "lenet": (lenet5, 10, (128, 1, 28, 28)),
    "resnet8": (resnet8, 10, (128, 3, 32, 32)),
    "resnet20": (resnet20, 10, (128, 3, 32, 32)),
    "resnet50": (resnet50, 1000, (4, 3, 224, 224)),
}
WORDS, TOKENS, HIDDEN = 8000, 128, 19  # of BERT: vocabulary, length of a sequence, hidden words in each
NETWORKS = ("autoencoder", "bert", *CLASSIFIERS)
OWN = "TrainOneStepCell"
PHASES = ("Momentum", OWN, "plain", "curvature", "refresh")  # as they are told


def reconstruction(output: Tensor, image: Tensor) -> Tensor:
    """Squared error, summed over pixels, mean over the batch."""
    return ops.square(output - image).sum(-1).mean()


def network(name: str, batch: int | None = None) -> tuple[nn.Cell, Callable[..., Tensor], tuple[Tensor, ...]]:
    """Network, ready to train, loss and one batch, of so many examples."""
    net, loss_fn, inputs = _network(name, batch)
    net.set_train()  # TrainStep does so: a baseline that only evaluates has another, faster BatchNorm
    return net, loss_fn, inputs


def _network(name: str, batch: int | None) -> tuple[nn.Cell, Callable[..., Tensor], tuple[Tensor, ...]]:
    rng = np.random.default_rng(0)
    if name == "bert":
        count = batch or 16
        ids = rng.integers(0, WORDS, (count, TOKENS)).astype(np.int32)
        at = np.stack([rng.choice(TOKENS, HIDDEN, replace=False) for _ in range(count)]).astype(np.int32)
        labels = Tensor(rng.integers(0, WORDS, count * HIDDEN).astype(np.int32))
        net = bert_tiny(vocab_size=WORDS, max_positions=TOKENS, dropout=0.0)
        return net, CrossEntropy(), (Tensor(ids), Tensor(at), labels)
    if name == "autoencoder":
        image = Tensor(rng.random((batch or 1000, 784), np.float32))
        return autoencoder(), reconstruction, (image, image)
    make, classes, shape = CLASSIFIERS[name]
    shape = (batch or shape[0], *shape[1:])
    labels = Tensor(rng.integers(0, classes, shape[0]).astype(np.int32))
    return make(), CrossEntropy(), (Tensor(rng.standard_normal(shape, np.float32)), labels)


def first_order_step(
    net: nn.Cell, loss_fn: Callable[..., Tensor], optimizer: nn.Optimizer | None = None, ranks: int = 1
) -> Callable[..., Tensor]:
    """nn.Momentum, or another optimizer, in a compiled step with a finite check; gradients are means over ranks."""
    optimizer = optimizer or nn.Momentum(net.trainable_params(), 1e-5, 0.9)
    mean, look = mean_over_ranks(ranks, [weight.shape for weight in optimizer.parameters]), looker()

    def forward(*inputs):
        return loss_fn(net(*inputs[:-1]), inputs[-1])

    differentiate = ms.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit
    def step(*inputs):
        loss, gradients = differentiate(*inputs)
        gradients = mean(gradients)
        if ops.isfinite(loss + look(gradients)):
            loss = ops.depend(loss, optimizer(gradients))
        return loss

    return step


class WithLoss(nn.Cell):
    """``nn.WithLossCell`` for networks of any number of inputs."""

    def __init__(self, net: nn.Cell, loss_fn: Callable[..., Tensor]):
        super().__init__(auto_prefix=False)
        self.net, self.loss_fn = net, loss_fn

    def construct(self, *inputs: Tensor) -> Tensor:
        """The loss of a batch."""
        return self.loss_fn(self.net(*inputs[:-1]), inputs[-1])


def own_step(net: nn.Cell, loss_fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """MindSpore's TrainOneStepCell, compiled."""
    cell = nn.TrainOneStepCell(WithLoss(net, loss_fn), nn.Momentum(net.trainable_params(), 1e-5, 0.9))

    @ms.jit
    def step(*inputs):
        return cell(*inputs)

    return step


class Forced:
    """A TrainStep whose next step is of one kind. To ask for it is no part of the step: ``timed`` does so before."""

    def __init__(self, step: thor.TrainStep, gather: int, refresh: int):
        self.step, optimizer = step, step.optimizer
        self.due = ((optimizer.next_gather, gather), (optimizer.next_refresh, refresh))

    def ask(self) -> None:
        for state, at in self.due:
            write(state, at)

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.ask()
        return self.step(*inputs)


class ThorPhases:
    """One TrainStep whose next step is forced to be plain, curvature, or refresh."""

    def __init__(self, name: str, batch: int | None = None, **options: Any):
        net, loss_fn, self.batch = network(name, batch)
        self.optimizer = thor.THOR(net, 1e-5, 0.03, refresh=thor.TraceRule.thor_nt(), interval=NEVER // 2, **options)
        self.step = thor.TrainStep(net, loss_fn, self.optimizer)

    def phases(self) -> dict[str, Callable[..., Tensor]]:
        due = {"refresh": (0, 0), "curvature": (0, NEVER), "plain": (NEVER, NEVER)}
        return {phase: Forced(self.step, *steps) for phase, steps in due.items()}


def timed(step: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> float:
    """Seconds of one step."""
    if isinstance(step, Forced):
        step.ask()
        step = step.step
    start = time.perf_counter()
    step(*batch).asnumpy()
    return time.perf_counter() - start


def measure(name: str, rounds: int, size: int | None, own: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of each phase over interleaved rounds, and ratios to Momentum."""
    net, loss_fn, batch = network(name, size)
    thor.device.fast_convolutions(net)
    phases = ThorPhases(name, size, **options)
    momentum = first_order_step(net, loss_fn)
    found = summary(take_turns(phases.phases() | {"Momentum": momentum}, batch, rounds))
    if own:  # in turns apart: its threads go on spinning beside the step after it
        other, _, _ = network(name, size)
        thor.device.fast_convolutions(other)
        apart = summary(take_turns({"Momentum": momentum, OWN: own_step(other, loss_fn)}, batch, rounds))
        for what, of_phases in found.items():
            of_phases[OWN] = apart[what][OWN]
    return found | {"state_bytes": phases.optimizer.memory()["total"]}


def take_turns(
    steps: dict[str, Callable[..., Tensor]], batch: tuple[Tensor, ...], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each, in rounds with an order drawn anew; what is compiled is compiled in the order given."""
    times: dict[str, list[float]] = {phase: [] for phase in steps}
    rng = random.Random(0)
    for index in range(rounds + SPIN_UP):
        for phase in steps if index < SPIN_UP else rng.sample(list(steps), len(steps)):
            seconds = timed(steps[phase], batch)
            if index >= SPIN_UP:
                times[phase].append(seconds * 1e3)
    return times


def summary(times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians and quartiles of each phase's milliseconds; and its ratio, the median of each round's to Momentum's.

    A machine that is slow for some seconds is slow for a whole round, so the rounds' ratios scatter less than times.
    """
    baseline = np.array(times["Momentum"])
    return {
        "ms": {phase: float(np.median(each)) for phase, each in times.items()},
        "quartiles": {phase: [float(q) for q in np.percentile(each, (25, 75))] for phase, each in times.items()},
        "ratio": {phase: float(np.median(np.array(each) / baseline)) for phase, each in times.items()},
    }


def amortised(times: dict[str, float], interval: int) -> float:
    """The mean step over an interval, of which one step refreshes and about ten gather; in what ``times`` are in."""
    gathers = math.ceil(interval / gathered_every(interval))
    curvature = (gathers - 1) * times["curvature"] + times["refresh"]
    return (curvature + (interval - gathers) * times["plain"]) / interval


def peak_memory(name: str, which: str, size: int | None, options: dict[str, Any]) -> int:
    """Peak bytes, as ``held`` counts them, of a process of its own that does a few steps."""
    command = [sys.executable, __file__, "--device", thor.device.current(), "--peak", name, which]
    for option, value in options.items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    command += [] if size is None else ["--batch", str(size)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    return int(output.split("PEAK")[1].split()[0])


def run_for_peak(name: str, which: str, size: int | None, options: dict[str, Any]) -> None:
    """A few steps of each kind, then this process's peak memory."""
    if which == "momentum":
        thor.device.allow_deep_graphs()  # as TrainStep does: ResNet-50 needs it
        net, loss_fn, batch = network(name, size)
        thor.device.fast_convolutions(net)
        step = first_order_step(net, loss_fn)
        for _ in range(4):
            timed(step, batch)
    else:
        phases = ThorPhases(name, size, **options)
        for phase in phases.phases().values():
            timed(phase, phases.batch)
            timed(phase, phases.batch)
    print("PEAK", held())


def held() -> int:
    """The most bytes that this process has held: of the device's memory, or where that is the host's, of resident."""
    return own_peak() if thor.device.current() == "CPU" else int(ms.runtime.max_memory_allocated())


def report(name: str, result: dict[str, Any]) -> None:
    """The times of one network, as they are known."""
    print(f"{name}: curvature state {result['state_bytes'] / 2**20:.1f} MiB")
    for phase in (each for each in PHASES if each in result["ms"]):
        median = result["ms"][phase]
        low, high = result["quartiles"][phase]
        print(f"  {phase:18} {median:9.1f} ms  [{low:.1f}, {high:.1f}]  {result['ratio'][phase]:.2f} x")
    for interval, ratio in result["amortised"].items():
        label = f"amortised, {interval}"
        print(f"  {label:18} {ratio * result['ms']['Momentum']:9.1f} ms  {ratio:.3f} x", flush=True)


def report_peaks(peaks: dict[str, int]) -> None:
    """The peak memory of a process of each optimizer."""
    mib = {which: peak / 2**20 for which, peak in peaks.items()}
    ratio = peaks["thor"] / peaks["momentum"]
    print(f"  peak memory: Momentum {mib['momentum']:.0f} MiB, THOR {mib['thor']:.0f} MiB ({ratio:.2f} x)", flush=True)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="+", default=["lenet", "autoencoder", "resnet20"], choices=NETWORKS)
    parser.add_argument("--device", default="auto", help="CPU, GPU, Ascend, or auto for the best one present (auto)")
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--batch", type=count, help="examples; each network has its own number")
    parser.add_argument("--without-own", action="store_true", help="leave out TrainOneStepCell")
    parser.add_argument("--split", default="block+mean", choices=["block", "block+mean", "block+rank"])
    parser.add_argument("--block-size", type=count, default=128, help="rows and columns of a block (128)")
    parser.add_argument("--factor-share", type=float, default=1.0, help="share of the batch that gives factors (1)")
    parser.add_argument("--interval", type=count, nargs="+", default=[100, 834], help="of amortised steps (100 834)")
    parser.add_argument("--out", type=file_to_write)
    parser.add_argument("--no-memory", action="store_true", help="skip the peak-memory processes")
    parser.add_argument("--peak", nargs=2, metavar=("NETWORK", "WHICH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        number("--factor-share", arguments.factor_share, 0.0, 1.0, open_low=True)
    except ValueError as error:
        parser.error(str(error))
    try:
        thor.device.select(arguments.device)
    except ValueError as error:
        parser.error(str(error))
    ms.set_context(mode=ms.GRAPH_MODE)
    options = {
        "split": arguments.split,
        "block_size": arguments.block_size,
        "factor_share": arguments.factor_share,
    }
    if arguments.peak:
        name, which = arguments.peak
        run_for_peak(name, which, arguments.batch, options)
        return
    results = {}
    for name in arguments.network:
        result = measure(name, arguments.rounds, arguments.batch, not arguments.without_own, options)
        result["amortised"] = {str(each): amortised(result["ratio"], each) for each in arguments.interval}
        report(name, result)
        if not arguments.no_memory:
            about = (arguments.batch, options)
            result["peak_bytes"] = {which: peak_memory(name, which, *about) for which in ("momentum", "thor")}
            report_peaks(result["peak_bytes"])
        results[name] = result
        write_results(arguments.out, results)


if __name__ == "__main__":
    main()
