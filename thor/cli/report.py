"""``thor report``: one HTML page of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thor.cli.terminal import say


def report(
    run: Annotated[Path, typer.Argument(help="folder of a training run, with its metrics.jsonl")],
    out: Annotated[Path | None, typer.Option(help="where the page goes; report.html in the folder")] = None,
) -> None:
    """Make one HTML page of a run: curves, refresh decisions, time, memory, configuration."""
    from thor.report import html  # matplotlib takes long to import

    say(f"wrote {html.write(run, out)}")
