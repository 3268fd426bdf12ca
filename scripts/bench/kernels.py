"""Where a step's time goes, by kind of kernel, as MindSpore's profiler sees it.

    python scripts/bench/kernels.py [--network bert autoencoder resnet20 resnet50] [--steps 5] [--out kernels.json]

For Momentum's step and THOR's plain step, curvature step and refresh: the step's wall time, its kernels, and the
milliseconds in each kind of them. *Outside* is when no kernel runs: inverses and decisions on the host, and what the
runtime needs between kernels. *Twice* is counted twice above it, for kernels ran at the same time. The profiler itself
slows small kernels; `scripts/bench/step.py` has the times to compare.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only, before it is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
from mindspore import Tensor
from rich.console import Console
from rich.table import Table

import thor
from scripts.bench.step import NETWORKS, SPIN_UP, ThorPhases, first_order_step, network
from scripts.common.arguments import count, file_to_write
from scripts.common.atomic_write import write_results

#: kinds of kernels, by words in their types; the first match counts
KINDS = {
    "products": ("MatMul", "Conv2D"),
    "patches": ("Im2Col", "Col2Im"),
    "moves": ("Transpose", "Reshape", "Concat", "Slice", "Split", "Tile", "Pad", "Cast", "ExpandDims", "TensorMove",
              "BroadcastTo", "Stack", "Gather"),
    "optimizer": ("ApplyMomentum", "Assign"),
}  # fmt: skip
OTHER = "other"  # entries one by one, and sums of them


def kind_of(kernel: str) -> str:
    """The kind of a kernel's type, such as "BatchMatMul"."""
    return next((kind for kind, words in KINDS.items() if any(word in kernel for word in words)), OTHER)


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of the spans (start, end) lasted."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def read_profile(folder: Path) -> tuple[dict[str, tuple[int, float]], list[tuple[float, float]]]:
    """How many kernels of each type ran, for how many milliseconds; and all their spans, as the profiler wrote them."""
    (types,) = folder.rglob("cpu_op_type_info_*.csv")
    (stamps,) = folder.rglob("cpu_op_execute_timestamp_*.txt")
    with types.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    spans = []
    for line in stamps.read_text(encoding="utf-8").splitlines():
        for run in line.split(";")[2].split():  # of one kernel: nanoseconds of the start, milliseconds
            start, length = run.split(",")[:2]
            spans.append((int(start) / 1e6, int(start) / 1e6 + float(length)))
    return {row["op_type"]: (int(row["type_occurrences"]), float(row["total_compute_time"])) for row in rows}, spans


def measure(step: Callable[..., Tensor], batch: tuple[Tensor, ...], steps: int) -> dict[str, Any]:
    """One kind of step: wall time, number of kernels, milliseconds by type and kind, all of one step."""
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


def table(name: str, results: dict[str, dict[str, Any]]) -> Table:
    """Kinds in rows, steps in columns."""
    made = Table(title=f"{name}, ms of one step", title_justify="left")
    made.add_column("")
    for phase in results:
        made.add_column(phase, justify="right")
    made.add_row("wall", *(f"{result['wall']:.1f}" for result in results.values()))
    made.add_row("kernels", *(f"{result['kernels']:.0f}" for result in results.values()))
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
    parser.add_argument("--out", type=file_to_write)
    arguments = parser.parse_args()
    thor.device.select("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    console, everything = Console(), {}
    for name in arguments.network:
        net, loss_fn, batch = network(name, arguments.batch)
        thor.device.fast_convolutions(net)
        steps = {"Momentum": first_order_step(net, loss_fn)}
        steps |= dict(reversed(ThorPhases(name, arguments.batch).phases().items()))  # plain, curvature, refresh
        results = {phase: measure(step, batch, arguments.steps) for phase, step in steps.items()}
        console.print(table(name, results))
        for phase, result in results.items() if arguments.types else ():
            longest = list(result["types"].items())[: arguments.types]
            named = (f"{each['count']:.0f} {kernel} {each['ms']:.1f}" for kernel, each in longest)
            console.print(f"  {phase}: {', '.join(named)}")
        everything[name] = results
        write_results(arguments.out, everything)


if __name__ == "__main__":
    main()
