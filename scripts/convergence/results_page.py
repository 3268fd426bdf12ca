"""Writes the tables of docs/results/benchmark.md and its pictures, from the benchmark's data beside it.

    python scripts/convergence/results_page.py --data runs/convergence/rules_small/results.json   # take over new data
    python scripts/convergence/results_page.py            # run it after tables or pictures look different
    python scripts/convergence/results_page.py --check    # status 1 if the page has to be written anew

The text above the mark on the page is written by hand, and is kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.common.atomic_write import write_atomically  # noqa: E402
from scripts.common.errors import run_program  # noqa: E402
from scripts.convergence import measures, picture, plan, results, tables  # noqa: E402
from scripts.convergence.results import Results  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
DATA, PAGE = "benchmark.json", "benchmark.md"
MARK = "<!-- What follows is written by scripts/convergence/results_page.py. -->"


def begun(found: Results) -> dict[str, str]:
    """The tasks of which runs are left to do, each with what it has so far."""
    whole, left = plan.plan(found.rules, list(found.tasks), list(found.rules.contenders)), {}
    for name, task in found.tasks.items():
        contenders = task.contenders.values()
        trials = sum(len(each.trials) for each in contenders)
        tests = sum(len(each.to_target) + len(each.equal_budget) for each in contenders)
        if (trials, tests) != (whole[name].trials, whole[name].tests):
            left[name] = f"{trials} of {whole[name].trials} trials, {tests} of {whole[name].tests} runs with test seeds"
        elif 0 < (alone := len(measures.timed_alone(task, task.contenders))) < len(task.contenders):
            left[name] = f"{alone} of {len(task.contenders)} optimizers timed"
    return left


def page(found: Results, before: str) -> str:
    """The page: what stands above the mark, and the tables and pictures of each finished task."""
    if MARK not in before:
        raise UserError(f"{PAGE}: lacks the line {MARK}")
    parts = [before.split(MARK)[0] + MARK, tables.measured_on(found)]
    left = begun(found)
    if left:
        words = ", ".join(f"{name} ({has})" for name, has in left.items())
        parts.append(f"Begun, and not shown before the last run is done: {words}.")
    for name, each in found.tasks.items():
        if name in left:
            continue
        title = found.rules.tasks[name].title
        parts += [f"## {name}", tables.of_task(found.rules, name, each), f"![{title}: its metric over seconds "
                  f"to the target, and over epochs at equal budget](benchmark-{name}.png)"]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def write(folder: Path) -> None:
    """Write page and pictures of the data in a folder."""
    found, path = results.read(folder / DATA), folder / PAGE
    write_atomically(path, page(found, path.read_text(encoding="utf-8")))
    left = begun(found)
    for name in found.tasks:
        if name not in left:
            picture.draw(found, name, folder / f"benchmark-{name}.png")


def up_to_date(folder: Path) -> bool:
    """True if the page has the tables of the data."""
    text = (folder / PAGE).read_text(encoding="utf-8")
    return page(results.read(folder / DATA), text) == text


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="results.json of run.py")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the page is not up to date")
    options = parser.parse_args(arguments)
    if options.check:
        return int(not up_to_date(FOLDER))
    if options.data is not None:
        page(results.read(options.data), (FOLDER / PAGE).read_text(encoding="utf-8"))  # before anything is replaced
        write_atomically(FOLDER / DATA, options.data.read_text(encoding="utf-8"))
    write(FOLDER)
    return 0


if __name__ == "__main__":
    run_program(main)
