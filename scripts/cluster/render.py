"""Job files for clusters, from a few values: python scripts/cluster/render.py volcano|slurm --config FILE [options].

The arguments after `--` go to scripts/train.py. The job file goes to standard output, or to --file.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import typer  # noqa: E402

from scripts.cluster.msrun import ROOT  # noqa: E402
from scripts.common.errors import reporting_write_errors, run_program  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402

TEMPLATES = Path(__file__).parent / "templates"
PORT = 8118  # any: the pods have a network of their own

# The form of each value, and an example. All values are checked, since they go into a file that a cluster executes.
_FORMS = {
    "name": (r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", "lower-case letters, digits and dashes, as in resnet50-thor"),
    "namespace": (r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "lower-case letters, digits and dashes"),
    "queue": (r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", "lower-case letters, digits and dashes"),
    "claim": (r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", "lower-case letters, digits and dashes"),
    "image": (r"[\w][\w./:@-]*", "as in registry/name:tag"),
    "time": (r"(\d+-)?\d{1,2}(:\d{2}){0,2}", "as in 24:00:00 or 2-00:00:00"),
    "gres": (r"[\w:.,-]+", "as in npu:8"),
    "shared": (r"/[\w./-]*", "an absolute path without spaces"),
}
_MEMORY = {
    "volcano.yaml": (r"\d+(Ki|Mi|Gi|Ti|[kMGT])", "as in 256Gi, as Kubernetes has it"),
    "slurm.sh": (r"\d+[KMGT]", "as in 256G, as Slurm has it"),
}

Name = Annotated[str, typer.Option(help="of the job")]
Nodes = Annotated[int, typer.Option(min=1, help="hosts")]
Devices = Annotated[int, typer.Option(min=1, help="devices of each host")]
Restarts = Annotated[int, typer.Option(min=0, help="how often to go on after a failure")]
Cpus = Annotated[int, typer.Option(min=1, help="processors of each host")]
Config = Annotated[Path, typer.Option(help="settings, a path in the repository")]
File = Annotated[Path | None, typer.Option(help="where the job file goes; standard output otherwise")]
Arguments = Annotated[list[str] | None, typer.Argument(help="behind --: further settings, --key value")]

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=__doc__)


def render(template: str, values: dict[str, Any]) -> str:
    """Fill a template with values, after checking the form of each."""
    for name, (form, hint) in (_FORMS | {"memory": _MEMORY[template]}).items():
        if name in values and not re.fullmatch(form, values[name]):
            raise UserError(f"{name} = {values[name]!r}: must be {hint}")
    return Template((TEMPLATES / template).read_text()).substitute(values)


def training(config: Path, arguments: Sequence[str]) -> str:
    """The arguments of scripts/train.py, quoted for a shell: training starts, or resumes from its last checkpoint."""
    for text in arguments:
        if not text.isprintable():
            raise UserError(f"{text!r}: an argument must be one line")
    return shlex.join(["--config", str(config), "--resume", "auto", *arguments])


@app.command()
def volcano(
    name: Name,
    config: Config,
    image: Annotated[str, typer.Option(help="container image with this repository at /opt/mindspore-thor")],
    claim: Annotated[str, typer.Option(help="persistent volume claim of the shared folder")],
    shared: Annotated[str, typer.Option(help="where it is mounted; results and logs go there")] = "/shared",
    namespace: Annotated[str, typer.Option(help="of the job")] = "default",
    queue: Annotated[str, typer.Option(help="Volcano's queue")] = "default",
    nodes: Nodes = 1,
    devices: Devices = 8,
    restarts: Restarts = 3,
    cpus: Cpus = 64,
    memory: Annotated[str, typer.Option(help="of each host")] = "256Gi",
    file: File = None,
    arguments: Arguments = None,
) -> None:
    """A job for Kubernetes with Volcano, on Ascend 910."""
    given = arguments or []
    out = [] if any(text.split("=")[0] == "--out" for text in given) else ["--out", f"{shared}/runs/{name}"]
    values = {
        "name": name, "image": image, "claim": claim, "shared": shared, "namespace": namespace, "queue": queue,
        "nodes": nodes, "devices": devices, "starts": restarts + 1, "cpus": cpus, "memory": memory, "port": PORT,
        "threads": max(1, cpus // devices), "master": "127.0.0.1" if nodes == 1 else f"{name}-worker-0.{name}",
        "arguments": _unexpanded(training(config, [*given, *out])),
    }  # fmt: skip
    _write(render("volcano.yaml", values), file)


def _unexpanded(text: str) -> str:
    """Escape text for Kubernetes, which expands $(NAME) as a variable and $$ as one $."""
    return text.replace("$", "$$")


@app.command()
def slurm(
    name: Name,
    config: Config,
    time: Annotated[str, typer.Option(help="limit of the job")] = "24:00:00",
    gres: Annotated[str | None, typer.Option(help="Slurm's name of the devices; npu:DEVICES unless given")] = None,
    nodes: Nodes = 1,
    devices: Devices = 8,
    restarts: Restarts = 3,
    cpus: Cpus = 64,
    memory: Annotated[str, typer.Option(help="of each host")] = "256G",
    repository: Annotated[Path, typer.Option(help="this repository on the hosts, with its .venv")] = ROOT,
    file: File = None,
    arguments: Arguments = None,
) -> None:
    """A batch script for Slurm."""
    values = {
        "name": name, "time": time, "gres": gres or f"npu:{devices}", "nodes": nodes, "devices": devices,
        "restarts": restarts, "starts": restarts + 1, "cpus": cpus, "memory": memory,
        "repository": shlex.quote(str(repository)), "arguments": training(config, arguments or []),
    }  # fmt: skip
    _write(render("slurm.sh", values), file)


def _write(text: str, file: Path | None) -> None:
    """Write the job file to `file`, or to standard output."""
    if file is None:
        typer.echo(text, nl=False)
    else:
        with reporting_write_errors(file, "there is no job file yet"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


if __name__ == "__main__":
    run_program(app)
