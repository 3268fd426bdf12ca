"""Evaluate a run: python scripts/eval.py RUN_FOLDER [--checkpoint best|last|FILE] [--out FILE.json] [--key value ...].

Network and data are those of the run's settings; any setting can be overridden, such as --data.folder. If the
checkpoint has averaged weights (ema), these are evaluated, as in training.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only, before it is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.arguments import file_to_write  # noqa: E402
from scripts.common.errors import reporting_write_errors, run_program  # noqa: E402
from scripts.run_folder.restore import checkpoint_of, settings_of  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="eval.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--checkpoint", default="best", metavar="best|last|FILE", help="which weights (best)")
    parser.add_argument("--out", type=file_to_write, metavar="FILE.json", help="also write the results there")
    options, overrides = parser.parse_known_args(arguments)
    settings = settings_of(options.folder, overrides)
    path = checkpoint_of(options.folder, options.checkpoint)

    from scripts.data.factory import open_feeds
    from scripts.run_folder.checkpoints import load_network
    from scripts.run_folder.class_names_file import check_class_names
    from scripts.run_folder.vocabulary_file import load_vocabulary
    from scripts.training.build import build, make_convolutions_fast
    from scripts.training.check_shapes import check_fit
    from scripts.training.evaluation import Evaluator

    parts = build(settings, open_feeds(settings, load_vocabulary(options.folder)))
    check_class_names(options.folder, parts.feeds)
    check_fit(settings, parts.feeds, parts.network, parts.loss)
    weights = load_network(path, parts.network)
    make_convolutions_fast(parts.network)
    scores = Evaluator(parts.network, parts.loss, parts.feeds.test, settings)()
    print(f"{path} ({weights}), {scores.count:,} {'words' if settings.data.name == 'text' else 'examples'}:")
    for name, value in scores.named().items():
        print(f"  {name} {value:.6g}")
    if unreadable := int(parts.feeds.unreadable().sum()):
        print(f"  {unreadable} unreadable images were left out")
    if options.out:
        results = {"checkpoint": str(path), "weights": weights, "count": scores.count, **scores.named()}
        with reporting_write_errors(options.out, "the results are above"):
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run_program(main)
