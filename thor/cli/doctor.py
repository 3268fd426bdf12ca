"""``thor doctor``: gathers the facts about this machine, and shows the findings of :mod:`thor.cli.doctor_findings`.

MindSpore takes long to import, therefore only functions that examine the machine import it, and what needs it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy
import typer

from thor.cli import arguments, ascend_findings, doctor_findings
from thor.cli.finding import Finding, Level
from thor.cli.terminal import console, say
from thor.runtime import supported_versions
from thor.runtime.errors import UserError
from thor.runtime.memory import available_memory

MARKS = ".thor-doctor"  # folder in the shared one; a file for each host
TOOLS = ("nvidia-smi", "nvcc", "npu-smi")
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    wanted: Annotated[str, typer.Option("--device", help="CPU, GPU, Ascend, or auto for any")] = "auto",
    port: Annotated[list[int] | None, typer.Option(help="that a job is to use; may be repeated")] = None,
    shared: Annotated[Path | None, typer.Option(help="folder that all hosts share")] = None,
    host: Annotated[list[str] | None, typer.Option(help="another host of the job; may be repeated")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Check this machine for training: versions, devices, memory, and for a job its ports, folder and clock.

    Each run leaves a mark in the folder --shared, by which the other hosts know that this one sees it. The exit status
    is 1 if something fails.
    """
    if host and shared is None:
        raise UserError("--host needs --shared: hosts find each other in that folder")
    findings = list(examine(_target(wanted), port or [], shared, host or []))
    healthy = all(finding.level != "fail" for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": healthy, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        _show(findings)
    raise typer.Exit(0 if healthy else 1)


def _target(name: str) -> str:
    """The target that --device means."""
    from thor.runtime import device

    return arguments.one_of("--device", name, (*device.TARGETS, "auto"))


def examine(wanted: str, ports: Sequence[int], shared: Path | None, others: Sequence[str]) -> Iterator[Finding]:
    """All findings about this machine."""
    import mindspore

    from thor.runtime import device

    yield from doctor_findings.versions(sys.version_info[:3], mindspore.__version__, numpy.__version__)
    tools = {name: shutil.which(name) for name in TOOLS}
    yield doctor_findings.device(wanted, device.present(), tools, os.environ)
    if wanted == "Ascend" or (wanted == "auto" and tools["npu-smi"] is not None):
        yield from _ascend(mindspore.__version__, "fail" if wanted == "Ascend" else "warn")
    yield doctor_findings.instruction_set(cpu_flags(), device.convolution_path())
    yield doctor_findings.cached_graphs(device.caches_graphs())
    yield doctor_findings.memory(available_memory())
    folder = shared or Path.cwd()
    if folder.is_dir():
        yield doctor_findings.disk(shutil.disk_usage(folder).free, str(folder))
    python = shutil.which("python")
    yield doctor_findings.msrun(shutil.which("msrun"), python, sys.prefix, prefix_of(python))
    for number in ports:
        yield doctor_findings.port(number, is_free(number))
    if shared is not None:
        yield from _shared(shared, others)


def _ascend(mindspore: str, level: Level) -> Iterator[Finding]:
    """Findings about CANN, the driver and CANN's Python packages; a missing one has this level."""
    files = ascend_findings.cann_files(os.environ, platform.machine())
    found = next((stated for file in files if (stated := stated_version(file)) is not None), None)
    yield ascend_findings.cann(mindspore, found, files, level)
    yield ascend_findings.driver(mindspore, stated_version(ascend_findings.DRIVER_FILE), level)
    modules = (ascend_findings.COMPILER, *supported_versions.CANN_PACKAGES)
    yield ascend_findings.packages([name for name in modules if importlib.util.find_spec(name) is None], level)


def stated_version(path: str) -> str | None:
    """The version that a version file states; None where there is no such file, or it states none."""
    try:
        return ascend_findings.version_in(Path(path).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _shared(folder: Path, others: Sequence[str]) -> Iterator[Finding]:
    """Findings about the shared folder, this host's clock, and the marks that other hosts left in the folder."""
    try:
        now, skew = leave_mark(folder, socket.gethostname())
    except OSError as error:
        yield doctor_findings.shared_folder(str(folder), error.strerror or str(error))
        return
    yield doctor_findings.shared_folder(str(folder), None)
    yield doctor_findings.clock(skew)
    yield from doctor_findings.hosts(
        others, {mark.name: mark.stat().st_mtime for mark in (folder / MARKS).iterdir()}, now
    )


def leave_mark(folder: Path, name: str) -> tuple[float, float]:
    """Write this host's mark; return the mark's time and the seconds that this host's clock is ahead of it."""
    if not folder.is_dir():
        raise FileNotFoundError(2, "no such folder")
    marks = folder / MARKS
    marks.mkdir(exist_ok=True)
    before = time.time()
    (marks / name).write_text(f"{before}\n")
    after = time.time()
    now = (marks / name).stat().st_mtime
    ahead = before - now if now < before else after - now if now > after else 0.0
    return now, ahead


def is_free(port: int) -> bool:
    """True if no process listens at a port of this host."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection does not count
        try:
            probe.bind(("", port))
        except PermissionError:  # a low port may be free and is still not allowed
            return True
        except (OSError, OverflowError):
            return False
    return True


def cpu_flags() -> list[str] | None:
    """Flags of the first processor; None where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore")
    except OSError:
        return None
    lines = [line for line in text.splitlines() if line.lower().startswith(("flags", "features"))]
    return lines[0].partition(":")[2].split() if lines else None


def prefix_of(python: str | None) -> str | None:
    """The environment (``sys.prefix``) of a Python; None if there is no such program or it does not run."""
    if python is None:
        return None
    try:
        command = [python, "-c", "import sys; print(sys.prefix)"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _show(findings: Sequence[Finding]) -> None:
    """Print a line for each finding, with its cure below."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        console.print(f"{finding.level:4}", style=COLOURS[finding.level], end=" ", highlight=False)
        say(f"{finding.name:{width}}  {finding.text}")
        if finding.cure:
            say(f"     {'':{width}}  -> {finding.cure}")
