"""Time of a step by kind of kernel, from MindSpore's profiler.

    python scripts/bench/kernels.py [--network bert autoencoder resnet20 resnet50] [--steps 5] [--out kernels.json]
    python scripts/bench/kernels.py --accelerator --steps 1     # how many kernels the graphs of an accelerator have

For Momentum's step and THOR's plain step, curvature step and refresh: wall time, number of kernels, and milliseconds in
each kind of kernel. *Outside* is the time in which no kernel runs: inverses and decisions on the host, and the
runtime's work between kernels. *Twice* is the time that the kinds count twice, because kernels ran at the same time.
The profiler slows small kernels, so use `scripts/bench/step.py` to compare step times.

With `--accelerator` the graphs are those that THOR compiles for a GPU or an Ascend, run on the CPU, which needs no
device. Their times mean nothing, but an accelerator launches about as many kernels. Its own compiler may join some.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # errors only; must be set before MindSpore is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
from mindspore import Tensor
from rich.console import Console
from rich.table import Table

import thor
from scripts.bench.step import NETWORKS, SPIN_UP, ThorPhases, baseline, network
from scripts.common.arguments import count, file_to_write
from scripts.common.atomic_write import write_results
from thor.settings.kinds import EIGENBASIS, INVERSE

#: Kinds of kernels, by words in the names of their types; the first match counts.
KINDS = {
    "products": ("MatMul", "Conv2D"),
    "patches": ("Im2Col", "Col2Im"),
    "moves": ("Transpose", "Reshape", "Concat", "Slice", "Split", "Tile", "Pad", "Cast", "ExpandDims", "TensorMove",
              "BroadcastTo", "Stack", "Gather"),
    "optimizer": ("ApplyMomentum", "Assign"),
}  # fmt: skip
#: Kinds of THOR's steps, in the order in which they are compiled.
THOR_PHASES = ("plain", "curvature", "refresh")
OTHER = "other"  # mostly element-wise operations and reductions


def kind_of(kernel: str) -> str:
    """The kind of a kernel's type, such as "BatchMatMul"."""
    return next((kind for kind, words in KINDS.items() if any(word in kernel for word in words)), OTHER)


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans (start, end)."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def read_profile(folder: Path) -> tuple[dict[str, tuple[int, float]], list[tuple[float, float]]]:
    """Read the files of the profiler: count and milliseconds of each type of kernel, and the spans (ms) of all runs."""
    (types,) = folder.rglob("cpu_op_type_info_*.csv")
    (stamps,) = folder.rglob("cpu_op_execute_timestamp_*.txt")
    with types.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    spans = []
    for line in stamps.read_text(encoding="utf-8").splitlines():
        for run in line.split(";")[2].split():  # a run of the kernel: start in nanoseconds, length in milliseconds
            start, length = run.split(",")[:2]
            spans.append((int(start) / 1e6, int(start) / 1e6 + float(length)))
    return {row["op_type"]: (int(row["type_occurrences"]), float(row["total_compute_time"])) for row in rows}, spans


def measure(step: Callable[..., Tensor], batch: tuple[Tensor, ...], steps: int) -> dict[str, Any]:
    """Profile one kind of step; per step: wall time, number of kernels, milliseconds by type and by kind of kernel."""
    for _ in range(SPIN_UP):
        step(*batch).asnumpy()
    with tempfile.TemporaryDirectory() as folder:
        profile = ms.profiler.profile(
            activities=[ms.profiler.ProfilerActivity.CPU],
            on_trace_ready=ms.profiler.tensorboard_trace_handler(folder),
        )
        profile.start()
        start = time.perf_counter()
        for _ in range(steps):
            step(*batch).asnumpy()
        wall = (time.perf_counter() - start) * 1e3
        profile.stop()
        by_type, spans = read_profile(Path(folder))
    types = {kernel: {"count": count / steps, "ms": spent / steps} for kernel, (count, spent) in by_type.items()}
    kinds = dict.fromkeys((*KINDS, OTHER), 0.0)
    for kernel, each in types.items():
        kinds[kind_of(kernel)] += each["ms"]
    at_work = busy(spans) / steps
    return {
        "wall": wall / steps,
        "kernels": sum(each["count"] for each in types.values()),
        "kinds": kinds,
        "twice": max(0.0, sum(kinds.values()) - at_work),
        "outside": wall / steps - at_work,
        "types": dict(sorted(types.items(), key=lambda item: -item[1]["ms"])),
    }


def profiled(
    name: str, precondition: str, batch: int | None, steps: int, phases: Collection[str] = THOR_PHASES
) -> dict[str, dict[str, Any]]:
    """Profile the baseline's step, Momentum's or beside eigenbases Adam's, and then THOR's phases on one network."""
    net, loss_fn, inputs = network(name, batch)
    thor.device.allow_deep_graphs()
    thor.device.fast_convolutions(net)
    base, alone = baseline(net, loss_fn, precondition)
    of_thor = ThorPhases(name, batch, precondition=precondition).phases()
    chosen = {phase: of_thor[phase] for phase in THOR_PHASES if phase in phases}
    return {phase: measure(step, inputs, steps) for phase, step in ({base: alone} | chosen).items()}


def table(name: str, results: dict[str, dict[str, Any]]) -> Table:
    """Make a table with kinds of kernels in rows and kinds of steps in columns."""
    made = Table(title=f"{name}, ms of one step", title_justify="left")
    made.add_column("")
    for phase in results:
        made.add_column(phase, justify="right")
    made.add_row("wall", *(f"{result['wall']:.1f}" for result in results.values()))
    made.add_row("kernels", *(f"{result['kernels']:.0f}" for result in results.values()))
    fewest = next(iter(results.values()))["kernels"]
    made.add_row("more kernels", *(f"{result['kernels'] - fewest:.0f}" for result in results.values()))
    for kind in (*KINDS, OTHER):
        made.add_row(kind, *(f"{result['kinds'][kind]:.1f}" for result in results.values()))
    for rest in ("twice", "outside"):
        made.add_row(rest, *(f"{result[rest]:.1f}" for result in results.values()))
    return made


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="+", default=["autoencoder", "bert"], choices=NETWORKS)
    parser.add_argument("--batch", type=count, help="examples; each network has its own number")
    parser.add_argument("--steps", type=count, default=5, help="of each kind (5)")
    parser.add_argument("--types", type=count, help="also list that many types of kernels, the longest")
    parser.add_argument("--precondition", default=INVERSE, choices=[INVERSE, EIGENBASIS])
    parser.add_argument("--accelerator", action="store_true", help="the graphs that a GPU or an Ascend would run")
    parser.add_argument("--out", type=file_to_write)
    arguments = parser.parse_args()
    thor.device.select("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    console, everything = Console(), {}
    with thor.device.choosing_for("GPU") if arguments.accelerator else nullcontext():
        for name in arguments.network:
            results = profiled(name, arguments.precondition, arguments.batch, arguments.steps)
            console.print(table(name, results))
            for phase, result in results.items() if arguments.types else ():
                longest = list(result["types"].items())[: arguments.types]
                named = (f"{each['count']:.0f} {kernel} {each['ms']:.1f}" for kernel, each in longest)
                console.print(f"  {phase}: {', '.join(named)}")
            everything[name] = results
            write_results(arguments.out, everything)


if __name__ == "__main__":
    main()
