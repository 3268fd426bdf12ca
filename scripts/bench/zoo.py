"""THOR on one network of each family of the package mindcv: what it captures, and that the network trains.

    python scripts/bench/zoo.py --structure-only --out zoo.json      # a minute or two; no step
    python scripts/bench/zoo.py --families vit,resnet --out zoo.json
    python scripts/bench/zoo.py --timed --out zoo.json      # compiled steps beside Momentum's too: hours
    python scripts/bench/zoo.py --out zoo.json --table docs/results/zoo.md      # measure nothing; write the table

*Parameters* are the entries of all trainable Parameters: weights, biases, scales and shifts of normalisations. The
captured ones are preconditioned; all others take the plain gradient. Networks are those of mindcv's own functions at
their smallest variants, without dropout. A network is trained on one batch by THOR's defaults: some curvature steps
and a plain one, operator by operator, for that needs no compiler. With ``--timed``, compiled steps that move nothing
are timed, interleaved with Momentum's, as by scripts/bench/step.py. Each of these has a process of its own.

With ``--out``, results are written after each network, and what is in the file already is not measured again: a run
that was interrupted goes on. What failed is measured again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # errors only; must be set before MindSpore is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms

import thor
from scripts.bench.zoo_families import FAMILIES
from scripts.bench.zoo_measure import step_times, structure, trained
from scripts.bench.zoo_table import percent, write_page
from scripts.common.arguments import count, file_to_write
from scripts.common.atomic_write import write_results
from scripts.common.errors import run_program
from thor.runtime.errors import UserError
from thor.runtime.host_threads import available_cores

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parents[2]
#: What is measured of a network in a process of its own, and the mode of MindSpore.
MODES = {"trained": ms.PYNATIVE_MODE, "steps": ms.GRAPH_MODE}


def families(text: str) -> list[str]:
    """Parse names of families, separated by commas."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in FAMILIES]
    if unknown or not chosen:
        what = f"unknown: {', '.join(unknown)}" if unknown else "no name is given"
        raise argparse.ArgumentTypeError(f"{what}; the families are {', '.join(FAMILIES)}")
    return list(dict.fromkeys(chosen))


def conditions(arguments: argparse.Namespace) -> dict[str, Any]:
    """What measurements depend on: options, settings and machine."""
    rounds = {"rounds": arguments.rounds} if "steps" in arguments.parts else {}
    return rounds | {
        "curvature steps": arguments.steps,
        "cores": available_cores(),
        "convolutions": thor.device.convolution_path(),
        "DNNL_MAX_CPU_ISA": os.environ.get("DNNL_MAX_CPU_ISA", "unset"),  # it decides how oneDNN computes
        "MindSpore": ms.__version__,
    }


def read_results(path: Path | None) -> dict[str, Any]:
    """The results in a file; those of no family if there is no such file."""
    if path is None or not path.exists():
        return {"families": {}}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found["families"], dict):
            raise TypeError("families must be a mapping")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as results of this program ({error}): give another --out") from error
    return found


def begin(results: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Note the conditions in the results; refuse results that were measured under others."""
    before = results.setdefault("conditions", {})
    for name, value in conditions(arguments).items():
        if before.setdefault(name, value) != value:
            raise UserError(
                f"{arguments.out}: was measured with {name} {before[name]}, and this run has {value}: "
                f"give another --out, or the same {name}"
            )


def done(found: dict[str, Any] | None, parts: Sequence[str]) -> bool:
    """Whether a family's results have the structure and these parts."""
    return found is not None and "error" not in found and all(part in found for part in ("structure", *parts))


def measure_structure(family: str) -> dict[str, Any]:
    """What is captured of a family's network; an error is a result too."""
    try:
        return {"structure": structure(family)}
    except Exception as error:  # networks are another author's: whatever fails, the other families go on
        return {"error": describe(error)}


def measure_apart(family: str, part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One of MODES for a family, from a process of its own; an error is a result too."""
    command = [sys.executable, str(SCRIPT), "--one", family, part]
    command += ["--steps", str(arguments.steps), "--rounds", str(arguments.rounds)]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=arguments.limit)
    except subprocess.TimeoutExpired:
        return {"error": f"{part}: not finished within {arguments.limit} s (--limit)"}
    if finished.returncode != 0 or not finished.stdout.strip():
        return {"error": f"{part}: its process ended with status {finished.returncode}"}
    return dict(json.loads(finished.stdout.splitlines()[-1]))


def answer_for_one(family: str, part: str, arguments: argparse.Namespace) -> None:
    """Print one part of a family's results as the last line, and leave without Python's end.

    As Python ends, Cells of networks that refer to themselves write a line of noise each.
    """
    ms.set_context(mode=MODES[part])
    try:
        if part == "trained":
            ms.runtime.launch_blocking()  # else threads that wait for operators take the cores from those that compute
            own = trained(family, arguments.steps)
        else:
            own = step_times(family, arguments.rounds)
        found: dict[str, Any] = {part: own}
    except Exception as error:  # see measure_structure
        found = {"error": f"{part}: {describe(error)}"}
    print(json.dumps(found), flush=True)
    os._exit(0)


def describe(error: Exception) -> str:
    """The first line of an error, with its class; MindSpore's headings, which begin with a hyphen, are passed over."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("-")]
    return f"{type(error).__name__}: {lines[0].strip() if lines else 'no message'}"


def told(found: dict[str, Any]) -> str:
    """One line about a family's results."""
    if "error" in found:
        return str(found["error"])
    seen = found["structure"]
    line = f"{seen['parameters'] / 1e6:.2f} M parameters, {percent(seen['captured_with_norms'] / seen['parameters'])}"
    if "trained" in found:
        loss, seconds = found["trained"]["loss"], found["trained"]["seconds"]
        line += f"; loss {loss[0]:.2f} -> {loss[1]:.2f}"
        line += f", curvature {seconds['curvature']:.1f} s, plain {seconds['plain']:.1f} s"
    if "steps" in found:
        ratio = found["steps"]["ratio"]
        line += f"; compiled: plain {ratio['plain']:.2f} x, curvature {ratio['curvature']:.2f} x"
    return line


def measure(arguments: argparse.Namespace) -> int:
    """Measure what is missing, and tell how far it is; the status is 1 if a family failed."""
    results = read_results(arguments.out)
    if arguments.parts:
        begin(results, arguments)
    found = results["families"]
    for index, family in enumerate(arguments.families, 1):
        head = f"[{index}/{len(arguments.families)}] {family}: "
        if done(found.get(family), arguments.parts):
            print(f"{head}in {arguments.out} already", flush=True)
            continue
        start, own = time.perf_counter(), {"model": FAMILIES[family].model}
        own |= {part: value for part, value in found.get(family, {}).items() if part in ("structure", *MODES)}
        if "structure" not in own:
            own |= measure_structure(family)
        for part in arguments.parts:
            if part not in own and "error" not in own:
                own |= measure_apart(family, part, arguments)
        found[family] = own
        results["families"] = found = {name: found[name] for name in FAMILIES if name in found}
        write_results(arguments.out, results)
        print(f"{head}{told(own)} ({time.perf_counter() - start:.0f} s)", flush=True)
    return int(any("error" in found[family] for family in arguments.families))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=families, default=list(FAMILIES), help="names, separated by commas (all)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--structure-only", dest="parts", action="store_const", const=(), default=("trained",),
                      help="count what is captured; run no step")  # fmt: skip
    what.add_argument("--timed", dest="parts", action="store_const", const=tuple(MODES),
                      help="time compiled steps too, beside Momentum's")  # fmt: skip
    parser.add_argument("--steps", type=count, default=3, help="curvature steps of a training (3)")
    parser.add_argument("--rounds", type=count, default=5, help="of interleaved compiled steps, with --timed (5)")
    parser.add_argument("--limit", type=count, default=3600, help="seconds for each measured part of a network (3600)")
    parser.add_argument("--out", type=file_to_write, metavar="FILE.json")
    parser.add_argument("--table", type=file_to_write, metavar="PAGE.md", help="write the table of --out into a page")
    parser.add_argument("--one", nargs=2, metavar=("FAMILY", "PART"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table is not None:
        if arguments.out is None or not arguments.out.exists():
            parser.error("--table writes what is in the file --out: give one that this program has written")
        write_page(arguments.table, read_results(arguments.out))
        return 0
    if importlib.util.find_spec("mindcv") is None:
        raise UserError("the package mindcv is not installed: `make lint` brings it, with requirements-dev.lock")
    thor.device.select("CPU")
    if arguments.one is not None:
        family, part = arguments.one
        answer_for_one(family, part, arguments)
    return measure(arguments)


if __name__ == "__main__":
    run_program(main)
