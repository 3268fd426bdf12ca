"""Train on several devices: python scripts/cluster/launch.py --devices 8 --restarts 3 -- --config FILE [--key value].

The arguments after `--` go to scripts/train.py, which every process runs. The output of the host's first rank is shown;
all logs are in --log-dir, which only one job may use at a time. A process that is killed, fails, hangs or exits early
ends all processes of the job, with one line that names the rank and the cause; with --restarts the job then resumes
from its last checkpoint. Ctrl-C, SIGTERM and a file `stop` in the run's folder end the job after the current step, with
a checkpoint.

On several hosts, run the same command on each, with --nodes N, --node-rank R, and --master and --port of host 0. All
hosts must share the run's folder; --log-dir must be different on each. Attempt number i uses --port + i, so that no
process connects to the remains of an earlier attempt.

Exit status: 0; 1 for a failure; 2 for an error that you must correct; 3 after the file `stop`; 130 after Ctrl-C or
SIGTERM.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import typer  # noqa: E402

from scripts.cluster.msrun import LOCAL, ROOT, Job, free_port  # noqa: E402
from scripts.cluster.watch import Attempt, Limits, Outcome  # noqa: E402
from scripts.common.errors import INTERRUPTED, USAGE_ERROR, run_program  # noqa: E402
from scripts.run_folder.folder_lock import folder_lock  # noqa: E402
from scripts.run_folder.stop_request import handling_signals  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402

TRAIN = ROOT / "scripts" / "train.py"
RESUME = ("--resume", "auto")
OVERWRITE = "--overwrite"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def launch(
    arguments: Annotated[list[str], typer.Argument(help="behind --: arguments of the program")],
    devices: Annotated[int, typer.Option(help="processes on this host, one a device")],
    nodes: Annotated[int, typer.Option(help="hosts")] = 1,
    node_rank: Annotated[int, typer.Option(help="this host, 0 to nodes - 1")] = 0,
    master: Annotated[str, typer.Option(help="address of host 0")] = LOCAL,
    port: Annotated[int | None, typer.Option(help="port at host 0; a free one, on one host")] = None,
    restarts: Annotated[int, typer.Option(min=0, help="how often to go on after a failure")] = 0,
    timeout: Annotated[int, typer.Option(help="seconds to come together, and on Ascend for a collective")] = 600,
    hang_seconds: Annotated[float, typer.Option(min=0, help="without a sign of life; 0 for no limit")] = 600.0,
    start_seconds: Annotated[float, typer.Option(min=0, help="until the first step; 0 for no limit")] = 1800.0,
    grace_seconds: Annotated[float, typer.Option(min=0, help="to end when asked to")] = 120.0,
    log_dir: Annotated[Path, typer.Option(help="logs, a folder for each attempt")] = Path("msrun_log"),
    script: Annotated[Path, typer.Option(help="the program; it must know --resume auto, for restarts")] = TRAIN,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the command and its environment only")] = False,
) -> None:
    """Run the job; the module's docstring is the help text."""
    if port is not None and port + restarts > 65535:
        raise UserError(f"port = {port}: must leave one for each restart, and {port} + {restarts} is above 65535")
    if nodes > 1 and port is None:
        raise UserError(f"port is needed with nodes = {nodes}: the same on all hosts, such as --port 8118")

    began = time.time()

    def job(attempt: int, begun: bool = False) -> Job:
        return Job(
            script=script,
            arguments=tuple(arguments) if attempt == 0 else restart_arguments(arguments, begun),
            log_dir=log_dir / f"attempt-{attempt}",
            devices=devices,
            nodes=nodes,
            node_rank=node_rank,
            master=master,
            port=free_port() if port is None else port + attempt,
            timeout=timeout,
            began=began,
        )

    _check_files(script, arguments)
    if dry_run:
        typer.echo(shell_command(job(0)))
        return
    limits = Limits(hang=hang_seconds, start=start_seconds, grace=grace_seconds)
    with folder_lock(log_dir, True, "--log-dir"), counting_requests() as asked:
        begun = False
        for attempt in range(restarts + 1):
            trial = Attempt(job(attempt, begun), limits, lambda: len(asked))
            outcome = trial()
            begun = begun or trial.begun
            if outcome.status != 1 or attempt == restarts or asked:
                break
            typer.echo(f"{outcome.message}; restart {attempt + 1} of {restarts}", err=True)
    raise typer.Exit(_ended(outcome))


def _check_files(script: Path, arguments: Sequence[str]) -> None:
    """Raise UserError if the program, or a file that its --config names, is missing: before anything is started."""
    if not script.is_file():
        raise UserError(f"{script}: no such program")
    for argument, value in zip(arguments, [*arguments[1:], ""], strict=True):
        option, equals, text = argument.partition("=")
        file = Path(text if equals else value)
        if option == "--config" and not file.is_file():
            raise UserError(
                f"--config {file}: no such file; paths are relative to {Path.cwd()}, where the job is started"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status is that of the job."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(app(args=given, standalone_mode=False) or 0)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        if type(error).__name__ == "NoSuchOption":  # its module differs between versions of typer
            raise UserError(_without_separator(given, str(getattr(error, "option_name", "")), str(error))) from None
        if not hasattr(error, "show"):
            raise
        error.show()  # any other error in the use of options
        return USAGE_ERROR


def _without_separator(given: Sequence[str], option: str, message: str) -> str:
    """The error message for an option that belongs behind ` -- `."""
    at = next((index for index, argument in enumerate(given) if argument.split("=")[0] == option), len(given))
    behind = [argument for argument in given[at:] if argument != "--"]
    command = shlex.join(["launch.py", *given[:at], "--", *behind])
    return f"{message}. If it is for the program, put it behind  -- , as in:  {command}"


def restart_arguments(arguments: Sequence[str], begun: bool = True) -> tuple[str, ...]:
    """The program's arguments for a restart: it resumes what earlier attempts have left, without --overwrite.

    If no attempt has begun training, --overwrite remains: the run that it was to remove may still be there.
    """
    if OVERWRITE in arguments and not begun:
        return tuple(arguments)
    kept = [argument for argument in arguments if argument != OVERWRITE]
    return (*kept, *(() if RESUME[0] in kept else RESUME))


def _ended(outcome: Outcome) -> int:
    """Print the outcome's message, if it has one; return its exit status."""
    if outcome.message:
        typer.echo(f"{'error: ' if outcome.status in (1, 2) else ''}{outcome.message}", err=True)
    return outcome.status


def shell_command(job: Job) -> str:
    """The job's command for a shell, preceded by the variables that it adds to the environment."""
    added = {name: value for name, value in job.environment({}).items() if os.environ.get(name) != value}
    added["PATH"] = f"{job.environment({})['PATH'].split(os.pathsep)[0]}{os.pathsep}$PATH"
    lines = [f"{name}={value if name == 'PATH' else shlex.quote(value)}" for name, value in sorted(added.items())]
    return " \\\n  ".join([*lines, shlex.join(job.command)])


@contextmanager
def counting_requests() -> Iterator[Sequence[int]]:
    """Context in which SIGINT and SIGTERM do not end the launcher; the yielded list collects their numbers."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    with handling_signals(note):
        yield seen


if __name__ == "__main__":
    run_program(main)
