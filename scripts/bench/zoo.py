"""THOR on one network of each family of the package mindcv: what it captures, and what its steps cost.

    python scripts/bench/zoo.py --structure-only --out zoo.json      # a minute or two
    python scripts/bench/zoo.py --families vit,resnet --out zoo.json
    python scripts/bench/zoo.py --out zoo.json --table docs/results/zoo.md      # measure nothing; write the table

*Parameters* are the entries of all trainable Parameters: weights, biases, scales and shifts of normalisations. The
captured ones are preconditioned; all others take the plain gradient. Networks are those of mindcv's own functions at
their smallest variants, without dropout. A network is trained for some steps on one batch, which gives the losses.
Then its steps are timed, interleaved with Momentum's, as by scripts/bench/step.py. Each network's steps have a process
of their own.

With ``--out``, results are written after each network, and what is in the file already is not measured again: a run
that was interrupted goes on. A network that failed is measured again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # errors only; must be set before MindSpore is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms

import thor
from scripts.bench.zoo_families import FAMILIES
from scripts.bench.zoo_measure import steps, structure
from scripts.bench.zoo_table import percent, write_page
from scripts.common.arguments import count, file_to_write
from scripts.common.atomic_write import write_results
from scripts.common.cpu_cores import available_cores
from scripts.common.errors import run_program
from thor.runtime.errors import UserError

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parents[2]
#: Settings of oneDNN that decide how a convolution runs (thor/runtime/device.py).
VARIABLES = ("DNNL_MAX_CPU_ISA", "THOR_CONVOLUTION")


def families(text: str) -> list[str]:
    """Parse names of families, separated by commas."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in FAMILIES]
    if unknown or not chosen:
        what = f"unknown: {', '.join(unknown)}" if unknown else "no name is given"
        raise argparse.ArgumentTypeError(f"{what}; the families are {', '.join(FAMILIES)}")
    return list(dict.fromkeys(chosen))


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What measured steps depend on, beside the machine."""
    chosen = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return {"rounds": arguments.rounds, "steps": arguments.steps} | chosen


def machine() -> dict[str, Any]:
    """The machine, for the table."""
    return {"cores": available_cores(), "convolutions": thor.device.convolution_path(), "mindspore": ms.__version__}


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
    """Note settings and machine in the results; refuse results of steps that were measured with others."""
    own = {"settings": settings_of(arguments), "machine": machine()}
    for key, now in own.items():
        then = results.get(key, now)
        if then != now:
            raise UserError(
                f"{arguments.out}: its steps were measured with {key} {then}, and this run has {now}: "
                f"give another --out, or the same {key}"
            )
    results.update(own)


def done(found: dict[str, Any] | None, structure_only: bool) -> bool:
    """Whether a family's results are complete."""
    return found is not None and "error" not in found and ("steps" in found or structure_only)


def measure_structure(family: str) -> dict[str, Any]:
    """What is captured of a family's network; an error is a result too."""
    try:
        return {"structure": structure(family)}
    except Exception as error:  # networks are another author's: whatever fails, the other families go on
        return {"error": describe(error)}


def measure_steps(family: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Times and losses of a family's steps, from a process of their own; an error is a result too."""
    command = [sys.executable, str(SCRIPT), "--one", family, "--rounds", str(arguments.rounds)]
    command += ["--steps", str(arguments.steps)]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=arguments.limit)
    except subprocess.TimeoutExpired:
        return {"error": f"not finished within {arguments.limit} s (--limit)"}
    if finished.returncode != 0 or not finished.stdout.strip():
        return {"error": f"its process ended with status {finished.returncode}"}
    return dict(json.loads(finished.stdout.splitlines()[-1]))


def answer_for_one(family: str, rounds: int, count: int) -> None:
    """Print the results of one family's steps as the last line, and leave without Python's end.

    As Python ends, Cells of networks that refer to themselves write a line of noise each.
    """
    try:
        found: dict[str, Any] = {"steps": steps(family, rounds, count)}
    except Exception as error:  # see measure_structure
        found = {"error": describe(error)}
    print(json.dumps(found), flush=True)
    os._exit(0)


def describe(error: Exception) -> str:
    """The first line of an error, with its class."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def told(found: dict[str, Any]) -> str:
    """One line about a family's results."""
    if "error" in found:
        return str(found["error"])
    seen = found["structure"]
    line = f"{seen['parameters'] / 1e6:.2f} M parameters, {percent(seen['captured_with_norms'] / seen['parameters'])}"
    if "steps" not in found:
        return line
    ratio, loss = found["steps"]["ratio"], found["steps"]["loss"]
    return f"{line}; plain {ratio['plain']:.2f} x, curvature {ratio['curvature']:.2f} x, {loss[0]:.2f} -> {loss[1]:.2f}"


def measure(arguments: argparse.Namespace) -> int:
    """Measure what is missing, and tell how far it is; the status is 1 if a family failed."""
    results = read_results(arguments.out)
    if not arguments.structure_only:
        begin(results, arguments)
    found = results["families"]
    for index, family in enumerate(arguments.families, 1):
        head = f"[{index}/{len(arguments.families)}] {family}: "
        if done(found.get(family), arguments.structure_only):
            print(f"{head}in {arguments.out} already", flush=True)
            continue
        start, before = time.perf_counter(), found.get(family, {})
        own = {"model": FAMILIES[family].model}
        own |= {"structure": before["structure"]} if "structure" in before else measure_structure(family)
        if not arguments.structure_only and "error" not in own:
            own |= measure_steps(family, arguments)
        found[family] = own
        results["families"] = found = {name: found[name] for name in FAMILIES if name in found}
        write_results(arguments.out, results)
        print(f"{head}{told(own)} ({time.perf_counter() - start:.0f} s)", flush=True)
    return int(any("error" in found[family] for family in arguments.families))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=families, default=list(FAMILIES), help="names, separated by commas (all)")
    parser.add_argument("--structure-only", action="store_true", help="count what is captured; run no step")
    parser.add_argument("--rounds", type=count, default=5, help="of interleaved steps (5)")
    parser.add_argument("--steps", type=count, default=10, help="steps between the two losses (10)")
    parser.add_argument("--limit", type=count, default=3600, help="seconds for the steps of a network (3600)")
    parser.add_argument("--out", type=file_to_write, metavar="FILE.json")
    parser.add_argument("--table", type=file_to_write, metavar="PAGE.md", help="write the table of --out into a page")
    parser.add_argument("--one", choices=list(FAMILIES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table is not None:
        if arguments.out is None or not arguments.out.exists():
            parser.error("--table writes what is in the file --out: give one that this program has written")
        write_page(arguments.table, read_results(arguments.out))
        return 0
    if importlib.util.find_spec("mindcv") is None:
        raise UserError("the package mindcv is not installed: `make lint` brings it, with requirements-dev.lock")
    thor.device.select("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    if arguments.one is not None:
        answer_for_one(arguments.one, arguments.rounds, arguments.steps)
    return measure(arguments)


if __name__ == "__main__":
    run_program(main)
