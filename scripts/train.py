"""Train a network: python scripts/train.py --config scripts/config/NAME.yaml [--key value ...] [--resume].

Any setting can be given as --key value, those of a block with a dot: --optimizer adam --adam.learning_rate 3e-4.
A run leaves config.yaml, metrics.jsonl, summary.json and its checkpoints in the folder --out. Ctrl-C ends it after the
step under way, with a checkpoint; --resume goes on from the last one, to the same numbers as without the break.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only, before it is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.config import load_config  # noqa: E402
from scripts.errors import UserError, run_program  # noqa: E402

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; its exit status is 130 where the user has ended it early."""
    options, overrides = _parser().parse_known_args(arguments)
    if options.config is None and not overrides:
        raise UserError("--config is needed, such as --config scripts/config/quickstart_thor.yaml (--help tells more)")
    settings = load_config(options.config, overrides)

    from scripts.training import CONFIG, train

    run = train(settings, resume=options.resume)
    if run.finished:
        print(f"results are in {run.folder}")
        return 0
    print(f"ended after step {run.position.step}; checkpoint saved. To go on:")
    print(f"  python scripts/train.py --config {run.folder / CONFIG} --resume")
    return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    """The options that are no settings."""
    parser = argparse.ArgumentParser(
        prog="train.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in YAML; the defaults otherwise")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the folder --out")
    return parser


if __name__ == "__main__":
    run_program(main)
