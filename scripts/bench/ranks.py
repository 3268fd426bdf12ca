"""Times of THOR's steps on 1, 2, 4 processes of this machine, for each way to share the inverses.

    python scripts/bench/ranks.py [--network autoencoder] [--batch 250] [--processes 1 2 4] [--out ranks.json]

Every process trains with a batch of its own (weak scaling) and with one thread, so that processes compete for cores
only if there are more processes than cores. Plain step, curvature step, refresh of every layer and a first-order step
(nn.Momentum, gradients averaged) alternate within a job. A time is the median over the rounds, of the slowest rank.
Bytes are the sizes of the tensors that a rank passes to collectives, whatever the collective's algorithm sends.

The strategy "apart" has no collectives: the same number of processes train independently at the same time. Its extra
time over one process is the cost of shared memory and cores, and the extra time of the other strategies over "apart" is
the cost of the collectives. ``thor plan`` needs the times of "apart".

An interrupted measurement goes on with the same command. ``--out`` takes all numbers. A file for each number of
processes, such as ``ranks-2.json`` in the same folder, is the input of ``thor plan --measured``, which compares its
predictions with it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from rich.console import Console
from rich.table import Table

import thor
from scripts.bench.step import CLASSIFIERS, ThorPhases, first_order_step, network
from scripts.cluster.msrun import run_here
from scripts.common.atomic_write import write_atomically
from scripts.common.errors import run_program
from thor.runtime.errors import UserError

KINDS = ("first_order", "plain", "curvature", "refresh")
APART = "apart"
STRATEGIES = (APART, "naive", "all", "0.5", "one")
SECONDS_PER_JOB = 1800
Line = dict[str, Any]


def strategies(ranks: int) -> dict[str, thor.Sharing | None]:
    """Ways to share the inverses among ranks, by their names in thor plan; None for no collectives."""
    if ranks == 1:
        return {"naive": None}
    found = {APART: None, "naive": thor.Sharing(shared=False), "all": thor.Sharing()}
    if ranks > 2:
        found["0.5"] = thor.Sharing(grad_worker_fraction=0.5)
    return found | {"one": thor.Sharing(grad_worker_fraction=0.0)}


def measure(name: str, batch: int, rounds: int, strategy: str, ranks: int) -> Line:
    """Time each kind of step in turn: milliseconds of the slowest rank, bytes of the rank that sends most.

    Every rank must call this.
    """
    sharing = strategies(ranks)[strategy]
    phases = ThorPhases(name, batch, **({} if sharing is None else {"sharing": sharing}))
    net, loss_fn, inputs = network(name, batch)
    thor.device.fast_convolutions(net)
    first = first_order_step(net, loss_fn, ranks=1 if sharing is None else ranks)
    steps = {"first_order": first} | phases.phases()
    times = np.zeros((rounds, len(KINDS)), np.float32)
    for turn in range(-2, rounds):  # the first two compile and warm up
        for index, kind in enumerate(KINDS):
            _barrier(ranks)
            start = time.perf_counter()
            steps[kind](*inputs).asnumpy()
            if turn >= 0:
                times[turn, index] = 1e3 * (time.perf_counter() - start)
    sent = phases.step.messages
    refresh = sent.get("refresh", 0) + sent.get("curvature", 0)
    weights = 4 * sum(weight.size for weight in phases.optimizer.inner.parameters)
    bytes_sent = [0 if sharing is None else weights, sent.get("plain", 0), sent.get("curvature", 0), refresh]
    own = [*np.median(times, 0), *bytes_sent, phases.optimizer.memory()["total"]]
    worst = _all_gather(np.array(own, np.float32), ranks).max(0)
    count = len(KINDS)
    return {
        "ms": dict(zip(KINDS, map(float, worst[:count]), strict=True)),
        "bytes": dict(zip(KINDS, map(int, worst[count : 2 * count]), strict=True)),
        "state_bytes": int(worst[-1]),
    }


def _barrier(ranks: int) -> None:
    _all_gather(np.zeros(1, np.float32), ranks)


def _all_gather(values: np.ndarray, ranks: int) -> np.ndarray:
    """Gather the vectors [n] of all ranks: [ranks, n]."""
    if ranks == 1:
        return values[None]
    return ops.AllGather()(Tensor(values)).asnumpy().reshape(ranks, -1)


def work(arguments: argparse.Namespace) -> None:
    """Run one process of a job, with one strategy; rank 0 writes the result."""
    thor.device.select("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    ranks, rank = arguments.in_job, 0
    if ranks > 1:
        from mindspore.communication import get_rank, init

        init()
        if arguments.strategy != APART:
            ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
        rank = get_rank()
    line = measure(arguments.network, arguments.batch, arguments.rounds, arguments.strategy, ranks)
    if rank == 0:
        arguments.out.write_text(json.dumps(line), encoding="utf-8")


def run_job(arguments: argparse.Namespace, ranks: int, strategy: str) -> Line:
    """Let msrun start the workers, and return their result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = folder / "found.json"
        flags = ["--network", arguments.network, "--batch", arguments.batch, "--rounds", arguments.rounds]
        flags += ["--in-job", ranks, "--strategy", strategy, "--out", found]
        run_here(Path(__file__).resolve(), flags, devices=ranks, folder=folder, seconds=SECONDS_PER_JOB)
        return {"devices": ranks, "strategy": strategy, **json.loads(found.read_text(encoding="utf-8"))}


def table(lines: list[Line]) -> Table:
    """Make a table with a row for each job."""
    shown = Table(title="ms (MiB into collectives)")
    for head in ("processes", "strategy", *KINDS, "state, MiB"):
        shown.add_column(head.replace("_", " "), justify="left" if head == "strategy" else "right")
    for line in lines:
        cells = [f"{line['ms'][kind]:.0f} ({line['bytes'][kind] / 2**20:.1f})" for kind in KINDS]
        shown.add_row(str(line["devices"]), line["strategy"], *cells, f"{line['state_bytes'] / 2**20:.1f}")
    return shown


def main() -> int:
    """Measure job by job, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="autoencoder", choices=["autoencoder", *CLASSIFIERS])
    parser.add_argument("--batch", type=int, default=250, help="examples of each process")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("ranks.json"))
    parser.add_argument("--in-job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--strategy", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_job:
        work(arguments)
        return 0
    for name in ("batch", "rounds"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name} must be at least 1, but got {getattr(arguments, name)}")
    if min(arguments.processes) < 1:
        raise UserError(f"--processes must be at least 1 each, but got {min(arguments.processes)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = Console()
    about = {"network": arguments.network, "batch": arguments.batch, "rounds": arguments.rounds}
    lines = _finished_jobs(arguments.out, about)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for ranks in arguments.processes:
        for strategy in [name for name in strategies(ranks) if name in arguments.strategies]:
            if any((line["devices"], line["strategy"]) == (ranks, strategy) for line in lines):
                continue
            lines.append(run_job(arguments, ranks, strategy))
            times = ", ".join(f"{kind} {value:.0f} ms" for kind, value in lines[-1]["ms"].items())
            console.print(f"{ranks} processes, {strategy}: {times}", markup=False, highlight=False, soft_wrap=True)
            write_atomically(arguments.out, json.dumps(about | {"jobs": lines}, indent=1))
    console.print(table(lines))
    for ranks in arguments.processes:
        path = arguments.out.with_name(f"{arguments.out.stem}-{ranks}.json")
        own = {line["strategy"]: line for line in lines if line["devices"] == ranks}
        apart = own.pop(APART, None)
        write_atomically(path, json.dumps([_for_plan(line) for line in own.values()], indent=1))
        if apart is not None:
            console.print(_for_plan_command(apart, path), markup=False, highlight=False, soft_wrap=True)
    console.print(f"wrote {arguments.out}", markup=False, highlight=False)
    return 0


def _finished_jobs(path: Path, about: Line) -> list[Line]:
    """The results that an interrupted run of the same measurement has left."""
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        jobs, others = list(found["jobs"]), {key: found.get(key) for key in about} != about
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read as results of this program ({error}); give another --out") from None
    if others:
        raise UserError(f"{path}: was measured with other settings; give the same ones, or another --out")
    return jobs


def _for_plan_command(apart: Line, measured: Path) -> str:
    """The command line of thor plan, with the computing times of the strategy "apart"."""
    times = apart["ms"]
    parts = {
        "step": times["first_order"],
        "precondition": max(0.0, times["plain"] - times["first_order"]),
        "factor": max(0.0, times["curvature"] - times["plain"]),
    }
    flags = " ".join(f"--{name}-ms {value:.1f}" for name, value in parts.items())
    return f"thor plan --devices {apart['devices']} {flags} --measured {measured}"


def _for_plan(line: Line) -> Line:
    """A result in the format of thor plan --measured."""
    times = {f"{kind}_ms": line["ms"][kind] for kind in ("plain", "curvature", "refresh")}
    return {"devices": line["devices"], "strategy": line["strategy"], **times}


if __name__ == "__main__":
    run_program(main)
