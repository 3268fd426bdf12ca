"""Step times of Momentum and of THOR (plain step, curvature step, refresh), as ratios from one interleaved run.

    python scripts/bench/step.py [--network resnet20 lenet autoencoder bert] [--rounds 15] [--out bench.json]
    python scripts/bench/step.py --precondition eigenbasis ...      # beside Adam

There are two baselines. *Momentum* is ``nn.Momentum`` in the same kind of compiled step as THOR's, with its finite
check; beside THOR in eigenbases it is *Adam*, first_order's. *TrainOneStepCell* is MindSpore's step with Momentum.
Ratios are to the first of them: one ratio per round, and the median over the rounds is reported.
*Amortised* is the mean step time over ``--interval`` steps, of which one refreshes all layers and about ten gather
factors.
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

os.environ.setdefault("GLOG_v", "3")  # errors only; must be set before MindSpore is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import first_order
import thor
from first_order.checks import number
from first_order.compiled import CompiledFunction
from models.autoencoder import autoencoder
from models.bert import bert_base, bert_tiny
from models.cross_entropy import CrossEntropy
from models.lenet import lenet5
from models.resnet import resnet50
from models.resnet_cifar import resnet8, resnet20
from scripts.common.arguments import count, file_to_write
from scripts.common.atomic_write import write_results
from scripts.common.memory_use import peak_memory as own_peak
from thor.distributed.ranks import Sharing
from thor.distributed.reduce import Means, unreduced
from thor.runtime.parameters import write
from thor.settings.gathering import default_factor_interval
from thor.settings.kinds import EIGENBASIS, INVERSE
from thor.step.finite_check import summary_of_all

NEVER = 2**31 - 1
SPIN_UP = 2  # first steps of each kind, which compile and warm up, and are not timed
CLASSIFIERS: dict[str, tuple[Callable[[], nn.Cell], int, tuple[int, int, int, int]]] = {
    "lenet": (lenet5, 10, (128, 1, 28, 28)),
    "resnet8": (resnet8, 10, (128, 3, 32, 32)),
    "resnet20": (resnet20, 10, (128, 3, 32, 32)),
    "resnet50": (resnet50, 1000, (4, 3, 224, 224)),
}
WORDS, TOKENS, HIDDEN = 8000, 128, 19  # for BERT: vocabulary size, sequence length, masked tokens per sequence
BERTS: dict[str, tuple[Callable[..., nn.Cell], int]] = {"bert": (bert_tiny, 16), "bert_base": (bert_base, 2)}
NETWORKS = ("autoencoder", *BERTS, *CLASSIFIERS)
OWN = "TrainOneStepCell"
PHASES = ("Momentum", "Adam", OWN, "plain", "curvature", "refresh")  # in the order of the report


def reconstruction(output: Tensor, image: Tensor) -> Tensor:
    """Squared error, summed over pixels, averaged over the batch."""
    return ops.square(output - image).sum(-1).mean()


def network(name: str, batch: int | None = None) -> tuple[nn.Cell, Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return a network in training mode, its loss, and one batch (`batch` examples, or the network's default)."""
    net, loss_fn, inputs = _network(name, batch)
    net.set_train()  # as TrainStep does; in evaluation mode, BatchNorm would be faster
    return net, loss_fn, inputs


def _network(name: str, batch: int | None) -> tuple[nn.Cell, Callable[..., Tensor], tuple[Tensor, ...]]:
    rng = np.random.default_rng(0)
    if name in BERTS:
        make_bert, count = BERTS[name][0], batch or BERTS[name][1]
        ids = rng.integers(0, WORDS, (count, TOKENS)).astype(np.int32)
        at = np.stack([rng.choice(TOKENS, HIDDEN, replace=False) for _ in range(count)]).astype(np.int32)
        labels = Tensor(rng.integers(0, WORDS, count * HIDDEN).astype(np.int32))
        net = make_bert(vocab_size=WORDS, max_positions=TOKENS, dropout=0.0)
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
    """Return a compiled step of a first-order optimizer, with a finite check and gradients averaged over ranks.

    Args:
        net: The network.
        loss_fn: Its loss, called with output and label.
        optimizer: nn.Momentum unless given.
        ranks: Ranks of the job.
    """
    optimizer = optimizer or nn.Momentum(net.trainable_params(), 1e-5, 0.9)
    shapes = [weight.shape for weight in optimizer.parameters]
    mean = unreduced if ranks == 1 else Means(shapes, [False] * len(shapes), Sharing().fusion)
    summarize = summary_of_all()

    def forward(*inputs):
        return loss_fn(net(*inputs[:-1]), inputs[-1])

    differentiate = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(*inputs):
        loss, gradients = differentiate(*inputs)
        loss, gradients = mean(loss, gradients, 1)
        if ops.isfinite(loss + summarize(gradients)):
            loss = ops.depend(loss, optimizer(gradients))
        return loss

    return CompiledFunction(step)


def baseline(net: nn.Cell, loss_fn: Callable[..., Tensor], precondition: str) -> tuple[str, Callable[..., Tensor]]:
    """Return what THOR's steps are compared with, and its name: Momentum's step, or beside eigenbases Adam's."""
    if precondition == EIGENBASIS:
        return "Adam", first_order_step(net, loss_fn, first_order.Adam(net.trainable_params(), 1e-5))
    return "Momentum", first_order_step(net, loss_fn)


class WithLoss(nn.Cell):
    """``nn.WithLossCell`` for networks with any number of inputs."""

    def __init__(self, net: nn.Cell, loss_fn: Callable[..., Tensor]):
        super().__init__(auto_prefix=False)
        self.net, self.loss_fn = net, loss_fn

    def construct(self, *inputs: Tensor) -> Tensor:
        """The loss of a batch."""
        return self.loss_fn(self.net(*inputs[:-1]), inputs[-1])


def train_one_step_cell(net: nn.Cell, loss_fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a compiled step of MindSpore's TrainOneStepCell with nn.Momentum."""
    cell = nn.TrainOneStepCell(WithLoss(net, loss_fn), nn.Momentum(net.trainable_params(), 1e-5, 0.9))

    def train_one_step(*inputs):
        return cell(*inputs)

    return CompiledFunction(train_one_step)


class Forced:
    """A TrainStep whose steps are all of one kind; ``ask`` sets the kind of the next one.

    Setting the kind is not part of the step, so ``timed`` calls ``ask`` before it starts the clock.
    """

    def __init__(self, step: thor.TrainStep, gather: int, refresh: int):
        self.step, optimizer = step, step.optimizer
        self.due = ((optimizer.own_state.next_gather, gather), (optimizer.own_state.next_refresh, refresh))

    def ask(self) -> None:
        for state, at in self.due:
            write(state, at)

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.ask()
        return self.step(*inputs)


class ThorPhases:
    """A TrainStep that can be forced to do a plain step, a curvature step or a refresh."""

    def __init__(self, name: str, batch: int | None = None, **options: Any):
        net, loss_fn, self.batch = network(name, batch)
        damping = None if options.get("precondition") == EIGENBASIS else 0.03
        self.optimizer = thor.THOR(net, 1e-5, damping, refresh=thor.TraceRule.thor_nt(), interval=NEVER // 2, **options)
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
    """Milliseconds of each phase over interleaved rounds, and ratios to Momentum, or to Adam beside eigenbases."""
    net, loss_fn, batch = network(name, size)
    thor.device.fast_convolutions(net)
    phases = ThorPhases(name, size, **options)
    base, alone = baseline(net, loss_fn, options["precondition"])
    found = summary(interleaved(phases.phases() | {base: alone}, batch, rounds), base)
    if own:  # in separate rounds, since its threads keep spinning and would slow the step after it
        other, _, _ = network(name, size)
        thor.device.fast_convolutions(other)
        times = interleaved({base: alone, OWN: train_one_step_cell(other, loss_fn)}, batch, rounds)
        separate = summary(times, base, found["ms"][base])
        for what, of_phases in found.items():
            of_phases[OWN] = separate[what][OWN]
    return found | {"state_bytes": phases.optimizer.memory()["total"]}


def interleaved(
    steps: dict[str, Callable[..., Tensor]], batch: tuple[Tensor, ...], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each step. Each round has a random order, but the steps are compiled in the given order."""
    times: dict[str, list[float]] = {phase: [] for phase in steps}
    rng = random.Random(0)
    for index in range(rounds + SPIN_UP):
        for phase in steps if index < SPIN_UP else rng.sample(list(steps), len(steps)):
            seconds = timed(steps[phase], batch)
            if index >= SPIN_UP:
                times[phase].append(seconds * 1e3)
    return times


def summary(times: dict[str, list[float]], base: str = "Momentum", typical: float | None = None) -> dict[str, Any]:
    """Ratios of each phase to ``base``, round by round, and milliseconds that follow from them.

    A slow phase of the machine affects all steps of a round, so the ratios scatter less than the times. The times are
    the ratios times ``typical``, milliseconds of the baseline, or its median in these rounds. So they tell the same as
    the ratios.

    Returns:
        ``ratio``, medians over the rounds; ``ms`` and ``quartiles``, milliseconds.
    """
    unit = float(np.median(times[base])) if typical is None else typical
    ratios = {phase: np.array(each) / np.array(times[base]) for phase, each in times.items()}
    middle = {phase: float(np.median(each)) for phase, each in ratios.items()}
    return {
        "ms": {phase: unit * each for phase, each in middle.items()},
        "quartiles": {phase: (unit * np.percentile(each, (25, 75))).tolist() for phase, each in ratios.items()},
        "ratio": middle,
    }


def amortised(times: dict[str, float], interval: int) -> float:
    """Mean time per step (in the unit of ``times``) of an interval in which one step refreshes and about ten gather."""
    gathers = math.ceil(interval / default_factor_interval(interval))
    curvature = (gathers - 1) * times["curvature"] + times["refresh"]
    return (curvature + (interval - gathers) * times["plain"]) / interval


def peak_memory(name: str, which: str, size: int | None, options: dict[str, Any]) -> int:
    """Peak bytes, as counted by ``peak_bytes``, of a new process that does a few steps."""
    command = [sys.executable, __file__, "--device", thor.device.current(), "--peak", name, which]
    for option, value in options.items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    command += [] if size is None else ["--batch", str(size)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    return int(output.split("PEAK")[1].split()[0])


def run_for_peak(name: str, which: str, size: int | None, options: dict[str, Any]) -> None:
    """Do a few steps of each kind, then print this process's peak memory."""
    if which == "momentum":
        thor.device.allow_deep_graphs()  # as TrainStep does; ResNet-50 needs it
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
    print("PEAK", peak_bytes())


def peak_bytes() -> int:
    """Peak bytes of this process: of the device's memory, or on a CPU of resident memory."""
    return own_peak() if thor.device.current() == "CPU" else int(ms.runtime.max_memory_allocated())


def report(name: str, result: dict[str, Any]) -> None:
    """Print the times of one network."""
    print(f"{name}: curvature state {result['state_bytes'] / 2**20:.1f} MiB")
    for phase in (each for each in PHASES if each in result["ms"]):
        median = result["ms"][phase]
        low, high = result["quartiles"][phase]
        print(f"  {phase:18} {median:9.1f} ms  [{low:.1f}, {high:.1f}]  {result['ratio'][phase]:.2f} x")
    base = next(result["ms"][name] for name in ("Momentum", "Adam") if name in result["ms"])
    for interval, ratio in result["amortised"].items():
        label = f"amortised, {interval}"
        print(f"  {label:18} {ratio * base:9.1f} ms  {ratio:.3f} x", flush=True)


def report_peaks(peaks: dict[str, int]) -> None:
    """Print the peak memory of Momentum's and THOR's processes, and their ratio."""
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
    parser.add_argument("--precondition", default=INVERSE, choices=[INVERSE, EIGENBASIS])
    parser.add_argument("--split", choices=["block", "block+mean", "block+rank"], help="of inverses (block+mean)")
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
    if arguments.precondition == EIGENBASIS and arguments.split is not None:
        parser.error(f"--split {arguments.split}: eigenbases are of plain blocks; leave it out")
    try:
        thor.device.select(arguments.device)
    except ValueError as error:
        parser.error(str(error))
    ms.set_context(mode=ms.GRAPH_MODE)
    options = {
        "precondition": arguments.precondition,
        "block_size": arguments.block_size,
        "factor_share": arguments.factor_share,
    }
    if arguments.split is not None:
        options["split"] = arguments.split
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
