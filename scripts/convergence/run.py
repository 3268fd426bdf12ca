"""Optimizers compared by rules that were fixed before: epochs and seconds to a target, and values at equal budget.

    python scripts/convergence/run.py                             # all tasks of the rules; --dry-run tells the hours
    python scripts/convergence/run.py --rules scripts/convergence/rules_small.yaml --jobs 2
    python scripts/convergence/run.py --task vit --only adam thor
    python scripts/convergence/run.py --quick                     # some minutes: that the program works, no result

The rules file says which optimizers are tuned in which spaces, by how many trials, and with which seeds the runs are
that count; docs/results/rules.md tells it in words. Each run is a folder of scripts/train.py, so a benchmark that
Ctrl-C or SIGTERM ended goes on with the same command, even in the middle of a run. ``--jobs 2`` trains two runs at
once, each on its own cores, and its seconds are those of a shared machine. After it, ``--timed`` on a quiet machine
trains each optimizer's run to the target once more, one run at a time, for seconds alone. ``--report-only`` makes
results.json, tables and pictures of the runs that are finished. ``--take results.json`` takes over the runs of such a
file, where their folders are gone, or to add a contender to published results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console  # noqa: E402

from scripts.common.arguments import count  # noqa: E402
from scripts.common.errors import INTERRUPTED, run_program  # noqa: E402
from scripts.convergence import plan, rules, search, taken  # noqa: E402
from scripts.convergence.bench import Bench, EndedEarlyError  # noqa: E402
from scripts.convergence.measures import NoTargetError  # noqa: E402
from scripts.convergence.report import Report, machine  # noqa: E402
from scripts.convergence.study import Study  # noqa: E402
from scripts.run_folder.stop_request import handling_signals  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=Path, default=rules.DEFAULT, help="the rules file (rules.yaml beside run.py)")
    parser.add_argument("--task", nargs="+", help="tasks of the rules (all)")
    parser.add_argument("--only", nargs="+", help="contenders of the rules (all); those that set targets are tuned too")
    parser.add_argument("--jobs", type=count, default=1, help="runs at the same time (1)")
    parser.add_argument("--quick", action="store_true", help="small data, few trials, one seed")
    parser.add_argument(
        "--dry-run", action="store_true", help="tell the number of runs and the hours, and train nothing"
    )
    parser.add_argument("--timed", action="store_true", help="train once more for seconds alone, one run at a time")
    parser.add_argument("--report-only", action="store_true", help="tables and pictures of the runs that are finished")
    parser.add_argument("--take", type=Path, help="a file of results whose runs are taken over, not trained again")
    parser.add_argument(
        "--out", type=Path, help="folder of all runs (runs/convergence/NAME of the rules, or .../quick)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tasks, or report on them; return the exit status."""
    options, console = parse(arguments), Console()
    if options.timed and options.jobs > 1:
        raise UserError("--timed trains one run at a time on all cores: leave --jobs out; finished runs are kept")
    fixed = rules.load(options.rules)
    tasks, names = options.task or list(fixed.tasks), options.only or list(fixed.contenders)
    if options.quick:
        tasks, names = options.task or fixed.quick.tasks, options.only or fixed.quick.contenders
    try:
        rules.check_names("--task", tasks, fixed.tasks)
        rules.check_names("--only", names, fixed.contenders)
    except ValueError as error:
        raise UserError(str(error)) from None
    fixed = fixed.made_quick() if options.quick else fixed
    search.check(fixed)
    if options.dry_run:
        text = plan.shown(plan.plan(fixed, tasks, names), options.jobs)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return 0
    known = taken.read(options.take, fixed, machine()) if options.take else {}
    out = options.out or Path("runs/convergence") / ("quick" if options.quick else options.rules.stem)
    report = Report(out, fixed, known, read_only=options.report_only)
    bench = Bench(options.jobs, console, read_only=options.report_only)
    without: list[str] = []  # for each task that has no results to report, the reason
    try:
        with handling_signals(bench.end):
            for task in tasks:
                try:
                    of_file = (
                        taken.Taken(known[task].contenders, known[task].target) if task in known else taken.NOTHING
                    )
                    study = Study(fixed, task, names, out / task, bench, options.timed, of_file)
                    bench.tell(report.add(task, study.do()))
                except NoTargetError as error:
                    without.append(str(error))
                if bench.ended.is_set():
                    raise EndedEarlyError
    except EndedEarlyError:
        console.print("ended early; the same command goes on")
        return INTERRUPTED
    if len(without) == len(tasks):
        raise UserError("\n       ".join(without))
    bench.tell("\n".join([*without, f"results: {report.path}"]))
    return 0


if __name__ == "__main__":
    run_program(main)
