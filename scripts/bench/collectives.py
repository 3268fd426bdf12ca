"""Costs of collectives on this machine, for ``thor plan --network``.

    python scripts/bench/collectives.py [--processes 2 4] [--out network.json]

For each number of processes, msrun starts this file again as the workers. They run AllReduce and AllGather of float32
in compiled graphs, with sizes from 4 KB to 32 MB; a round measures each size once. A time is the median over the
rounds, of the slowest rank. Latency and bandwidth are a least-squares fit to all times (thor/simulation/fit.py).

If there are more processes than cores, they compete for the cores. The model of latency and bandwidth cannot describe
this, and the residual is large. Then a file for each number of processes (--processes 2, then --processes 4) predicts
better. The costs on one machine say nothing about a cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import thor
from scripts.cluster.msrun import run_here  # noqa: E402
from scripts.common.arguments import file_to_write
from scripts.common.atomic_write import write_atomically
from scripts.common.errors import run_program
from thor.runtime.errors import UserError
from thor.simulation.fit import Sample, fit

SIZES = tuple(4096 * 2**power for power in range(0, 14, 2)) + (2**25,)  # 4 KB ... 16 MB by fours, and 32 MB
SECONDS_PER_ROUND = 0.05  # short collectives are repeated within a round
SECONDS_PER_JOB = 300


class Collective(nn.Cell):
    """AllReduce or AllGather, compiled."""

    def __init__(self, operation: ops.Primitive):
        super().__init__()
        self.operation = operation

    def construct(self, x: Tensor) -> Tensor:
        return self.operation(x)


def measure(rounds: int, sizes: tuple[int, ...]) -> list[Sample]:
    """Time all collectives, and return the medians of the slowest rank. Every rank must call this."""
    from mindspore.communication import get_group_size

    ranks = get_group_size()
    gather = ops.AllGather()
    cells = {"all_reduce": Collective(ops.AllReduce()), "all_gather": Collective(gather)}
    cases = []
    for name, cell in cells.items():
        for size in sizes:
            own = size // ranks if name == "all_gather" else size
            cases.append((name, size, cell, Tensor(np.ones(own // 4, np.float32))))
    times = np.zeros((rounds, len(cases)), np.float32)
    repeats = []
    for _, _, cell, x in cases:
        _seconds(cell, x, 1)  # compiles
        repeats.append(_min_over_ranks(gather, max(1, int(SECONDS_PER_ROUND / _seconds(cell, x, 1)))))
    for turn in range(rounds):
        for index, (_, _, cell, x) in enumerate(cases):
            _min_over_ranks(gather, 1)  # the ranks meet
            times[turn, index] = _seconds(cell, x, repeats[index])
    median = np.median(times, 0).astype(np.float32)
    slowest = gather(Tensor(median)).asnumpy().reshape(ranks, -1).max(0)
    return [Sample(name, ranks, size, float(s)) for (name, size, _, _), s in zip(cases, slowest, strict=True)]


def _seconds(cell: nn.Cell, x: Tensor, repeats: int) -> float:
    """Mean seconds of one collective, over some repeats."""
    start = time.perf_counter()
    for _ in range(repeats):
        result = cell(x)
    result.asnumpy()
    return (time.perf_counter() - start) / repeats


def _min_over_ranks(gather: ops.AllGather, count: int) -> int:
    """The minimum of a number over the ranks, since all must call a collective equally often."""
    return int(gather(Tensor(np.array([count], np.float32))).asnumpy().min())


def work(arguments: argparse.Namespace) -> None:
    """Run one rank of a job; rank 0 writes the samples."""
    from mindspore.communication import get_rank, init

    thor.device.select("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    init()
    samples = measure(arguments.rounds, tuple(arguments.sizes))
    if get_rank() == 0:
        arguments.samples.write_text(json.dumps([asdict(sample) for sample in samples]), encoding="utf-8")


def run_job(processes: int, rounds: int, sizes: list[int]) -> list[Sample]:
    """Let msrun start the workers, and return their samples."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = folder / "samples.json"
        arguments = ["--samples", found, "--rounds", rounds, "--sizes", *sizes]
        run_here(Path(__file__).resolve(), arguments, devices=processes, folder=folder, seconds=SECONDS_PER_JOB)
        return [Sample(**sample) for sample in json.loads(found.read_text(encoding="utf-8"))]


def main() -> int:
    """Measure, fit the network's model, write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="bytes, at least two of them")
    parser.add_argument("--out", type=file_to_write, default=Path("network.json"))
    parser.add_argument("--samples", type=Path, help=argparse.SUPPRESS)  # a worker: where rank 0 writes
    arguments = parser.parse_args()
    if arguments.samples:
        work(arguments)
        return 0
    _check(arguments)
    samples = [s for count in arguments.processes for s in run_job(count, arguments.rounds, arguments.sizes)]
    found = fit(samples)
    for name, link in found.network.links.items():
        print(f"{name:10}  {link.alpha * 1e6:8.1f} us a hop   {link.beta * 1e9:6.3f} s/GB   "
              f"residual {found.residual[name]:.0%}")  # fmt: skip
    print(f"{found.network.algorithm} explains the times best")
    about: dict[str, Any] = {
        "host": f"{platform.node()}, {os.cpu_count()} cores, MindSpore {ms.__version__}", "sizes": arguments.sizes,
        "residual": found.residual, "samples": [asdict(sample) for sample in samples],
    }  # fmt: skip
    write_atomically(arguments.out, json.dumps(found.network.to_dict() | about, indent=1))
    print(f"wrote {arguments.out}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise an error about wrong arguments before any process is started."""
    if min(arguments.processes) < 2:
        raise UserError(f"--processes must be at least 2 each, but got {min(arguments.processes)}")
    if arguments.rounds < 1:
        raise UserError(f"--rounds must be at least 1, but got {arguments.rounds}")
    unit = 4 * max(arguments.processes)
    if len(set(arguments.sizes)) < 2 or min(arguments.sizes) < unit:
        raise UserError(f"--sizes must be at least two different numbers of at least {unit} bytes")


if __name__ == "__main__":
    run_program(main)
