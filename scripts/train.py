"""Train a network: python scripts/train.py --config scripts/config/NAME.yaml [--key value ...] [--resume].

Any setting can be given as --key value, those of a section with a dot: --optimizer adam --adam.learning_rate 3e-4.
A run writes config.yaml, metrics.jsonl (and as CSV), summary.json and its checkpoints to the folder --out. Ctrl-C,
SIGTERM or a file called `stop` in that folder ends it after the current step, with a checkpoint and the status 130, or
3 by the file. --resume continues from the last checkpoint, to the same numbers as without the break; with more --epochs
a finished run goes on too. --resume auto starts a new run if there is no checkpoint: the one command for a job that may
be killed and started again. Without --resume, a folder that has a checkpoint is refused, unless --overwrite is given,
which removes it. --dry-run shows what would be trained, and ends with the status 2 if data, device, weights (--init) or
a folder to write to are missing.
Under msrun (scripts/cluster/launch.py starts it) the processes share each batch and train as one.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

BEGAN = time.time()  # before the imports, during which a user may ask the run to stop

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only, before it is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.errors import INTERRUPTED, STOPPED, USAGE_ERROR, run_program  # noqa: E402
from scripts.run_folder.stop_request import stopped_by_file  # noqa: E402
from scripts.settings.optimizer_sections import unused_in  # noqa: E402
from scripts.settings.yaml_config import load_config  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402


def main(arguments: Sequence[str] | None = None, began: float | None = None) -> int:
    """Run the program; the exit status is 130 if a signal has ended it early, 3 if the stop file has.

    Args:
        arguments: Those of the command line unless given.
        began: time.time() at the start of the program, or now.
    """
    options, overrides = _parser().parse_known_args(arguments)
    if options.config is None and not overrides:
        raise UserError("--config is needed, such as --config scripts/config/quickstart_thor.yaml (--help tells more)")
    settings = load_config(options.config, overrides)
    unused = unused_in(settings, options.config)
    if unused:
        print(f"warning: {unused}", file=sys.stderr)

    if options.dry_run:
        from scripts.training.dry_run import show

        return USAGE_ERROR if show(settings).notes else 0

    from scripts.run_folder.restore import CONFIG
    from scripts.training.loop import train

    resume = {"no": False, "last": True}.get(options.resume, options.resume)
    run = train(settings, resume=resume, overwrite=options.overwrite, began=began)
    if run.finished:
        if run.ranks.leads:
            print(f"results are in {run.folder}")
        return 0
    if run.ranks.leads:
        again = f"--config {shlex.quote(str(run.folder / CONFIG))} --resume"
        print(f"ended after step {run.position.step}; checkpoint saved. To go on:")
        if run.ranks.count > 1:  # a single process would take the complete batch
            print(f"  the same job, with  -- {again}  for its processes (scripts/cluster/launch.py)")
        else:
            print(f"  python scripts/train.py {again}")
    # All ranks return the same status: the launcher of another host sees neither the file nor the signal.
    stopped = run.ranks.total([run.ranks.leads and stopped_by_file(run.folder)])[0] > 0
    return STOPPED if stopped else INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    """The parser of the options that are not settings."""
    parser = argparse.ArgumentParser(
        prog="train.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in YAML; the defaults otherwise")
    folder = parser.add_mutually_exclusive_group()
    folder.add_argument(
        "--resume",
        nargs="?",
        const="last",
        default="no",
        choices=("last", "auto"),
        help="go on from the last checkpoint in the folder --out; auto: start if there is none",
    )
    folder.add_argument("--overwrite", action="store_true", help="begin anew where --out holds a run, and remove it")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained, and where files would go")
    return parser


if __name__ == "__main__":
    run_program(lambda: main(began=BEGAN))
