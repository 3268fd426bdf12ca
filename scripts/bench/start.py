"""Start-up times of THOR and of Momentum: imports, compilation, and the first steps.

    python scripts/bench/start.py [--network lenet resnet20] [--resnet50] [--repeats 5] [--out start.json]

Every measurement has a process of its own, since the second import and the second compilation of a process are cheaper.
A first step compiles its graphs and runs them. Compilation is also reported for each graph, by timing the function of
MindSpore that compiles. THOR's very first step refreshes (it compiles the graphs *curvature* and *apply*); its first
step without refresh compiles *plain*.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
from rich.console import Console
from rich.table import Table

import thor
from first_order.mindspore_versions import compiler
from scripts.bench.step import ThorPhases, first_order_step, network, timed
from scripts.common.arguments import count, file_to_write
from scripts.common.atomic_write import write_results

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parents[2]
MODULES = ("mindspore", "thor.train_step", "first_order")
NETWORKS = ("lenet", "resnet8", "resnet20", "autoencoder")
GRAPHS = ("curvature", "apply", "plain")  # names of TrainStep's graphs
IMPORT = "import time; begin = time.perf_counter(); import {}; print(time.perf_counter() - begin)"


@contextmanager
def compilations() -> Iterator[dict[str, float]]:
    """Context that yields the seconds of MindSpore's compilation of each function, by the function's name."""
    seconds: dict[str, float] = {}
    original = compiler._CellGraphExecutor.compile

    def measured(self, cell, *arguments, **options):
        begin = time.perf_counter()
        phase, compiled = original(self, cell, *arguments, **options)
        if compiled:
            seconds.setdefault(cell.function.__name__, time.perf_counter() - begin)
        return phase, compiled

    compiler._CellGraphExecutor.compile = measured
    try:
        yield seconds
    finally:
        compiler._CellGraphExecutor.compile = original


def measure_thor(name: str) -> dict[str, Any]:
    """Seconds of THOR's construction, its first two steps with and without refresh, and each graph's compilation."""
    with compilations() as graphs:
        begin = time.perf_counter()
        phases = ThorPhases(name)
        made = time.perf_counter() - begin
        steps = phases.phases()
        refresh = [timed(steps["refresh"], phases.batch) for _ in range(2)]
        plain = [timed(steps["plain"], phases.batch) for _ in range(2)]
    return {"construction": made, "refresh": refresh, "plain": plain, "graphs": graphs}


def measure_momentum(name: str) -> dict[str, Any]:
    """Seconds of the first two steps of nn.Momentum, and of its graph's compilation."""
    thor.device.allow_deep_graphs()  # as TrainStep does: ResNet-50 needs it
    net, loss_fn, batch = network(name)
    thor.device.fast_convolutions(net)
    with compilations() as graphs:
        step = first_order_step(net, loss_fn)
        return {"plain": [timed(step, batch) for _ in range(2)], "graphs": graphs}


MEASUREMENTS = {"thor": measure_thor, "momentum": measure_momentum}


def in_fresh_process(*command: str) -> Any:
    """Run a new Python process, and return the JSON in the last line that it prints."""
    printed = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    return json.loads(printed.splitlines()[-1])


def import_times(repeats: int) -> dict[str, list[float]]:
    """Seconds of each module's import; the modules alternate, so that a slow phase of the machine affects all."""
    times: dict[str, list[float]] = {module: [] for module in MODULES}
    for _ in range(repeats):
        for module, found in times.items():
            found.append(in_fresh_process("-c", IMPORT.format(module)))
    return times


def _table(title: str, first: str, *columns: str) -> Table:
    """Make an empty table with a column of names and some columns of numbers."""
    table = Table(title=title)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def imports_table(times: dict[str, list[float]]) -> Table:
    """Make the table of imports: median, minimum and maximum of the seconds of each."""
    table = _table("import, s", "module", "median", "least", "most")
    for module, found in times.items():
        table.add_row(module, *(f"{value:.2f}" for value in (statistics.median(found), min(found), max(found))))
    return table


def starts_tables(results: dict[str, dict[str, Any]]) -> list[Table]:
    """Make the tables of compilation by graph and of first and second steps, with a row for each network."""
    compilation = _table("compilation, s", "network", *(f"THOR {graph}" for graph in GRAPHS), "Momentum")
    kinds = [(which, kind) for which in ("THOR refresh", "THOR plain", "Momentum") for kind in ("1st", "2nd")]
    steps = _table("steps, s", "network", *(f"{which} {kind}" for which, kind in kinds))
    for name, found in results.items():
        ours, other = found["thor"], found["momentum"]
        graphs = [*(ours["graphs"][graph] for graph in GRAPHS), other["graphs"]["step"]]
        compilation.add_row(name, *(f"{value:.3g}" for value in graphs))
        steps.add_row(name, *(f"{value:.3g}" for value in (*ours["refresh"], *ours["plain"], *other["plain"])))
    return [compilation, steps]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--resnet50", action="store_true", help="ResNet-50 at 224 x 224 too, which takes minutes")
    parser.add_argument("--repeats", type=count, default=5, help="processes for each import (5)")
    parser.add_argument("--out", type=file_to_write, metavar="FILE.json")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "OPTIMIZER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        thor.device.select("CPU")
        ms.set_context(mode=ms.GRAPH_MODE)
        name, which = arguments.one
        print(json.dumps(MEASUREMENTS[which](name)))
        return
    console = Console()
    imports = import_times(arguments.repeats)
    console.print(imports_table(imports))
    results: dict[str, dict[str, Any]] = {}
    for name in [*arguments.network, *(["resnet50"] if arguments.resnet50 else [])]:
        results[name] = {which: in_fresh_process(str(SCRIPT), "--one", name, which) for which in MEASUREMENTS}
        write_results(arguments.out, {"imports": imports, "starts": results})
    console.print(*starts_tables(results))


if __name__ == "__main__":
    main()
