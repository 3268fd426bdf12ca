"""The command ``thor``: its sub-commands and its version."""

from __future__ import annotations

from typing import Annotated

import typer

import thor
from thor.cli.doctor import doctor
from thor.cli.plan import plan
from thor.cli.profile import choose, profile, show
from thor.cli.report import report
from thor.cli.terminal import clear_errors

app = typer.Typer(
    help="Second-order optimization for MindSpore: choose THOR's block size by measuring.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"thor {thor.__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of ``thor`` itself."""


for command in (profile, show, choose, report, plan, doctor):
    app.command()(clear_errors(command))
