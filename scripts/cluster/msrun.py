"""The msrun command of one host of a job, and the environment that it needs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.common.cpu_cores import thread_limit
from thor.runtime.errors import UserError

LOCAL = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One host's part of a job.

    Attributes:
        script: The program that every process runs.
        arguments: Its arguments.
        log_dir: Folder of worker_N.log, scheduler.log and msrun.log.
        devices: Processes on this host, one per device.
        nodes: Hosts of the job, each with equally many devices.
        node_rank: This host's number; 0 is the host at `master`.
        master: Address of host 0, where msrun's scheduler runs.
        port: Port of the scheduler.
        timeout: Seconds for all processes to connect, and on Ascend for a collective to wait.
        began: time.time() of the job's first attempt. A file `stop` that is newer asks the job to end.
    """

    script: Path
    arguments: tuple[str, ...]
    log_dir: Path
    devices: int
    nodes: int = 1
    node_rank: int = 0
    master: str = LOCAL
    port: int
    timeout: int = 600
    began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        for name in ("devices", "nodes", "timeout"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        if not 0 <= self.node_rank < self.nodes:
            raise UserError(f"node-rank = {self.node_rank}: must be 0 to {self.nodes - 1} with {self.nodes} nodes")
        if not 1024 <= self.port <= 65535:
            raise UserError(f"port = {self.port}: must be 1024 to 65535")
        if self.nodes > 1 and self.master in (LOCAL, "localhost"):
            raise UserError(
                f"master = {self.master}: with {self.nodes} nodes it must be an address all hosts can reach"
            )
        if not self.script.is_file():
            raise UserError(f"{self.script}: no such program")

    @property
    def ranks(self) -> range:
        """The ranks of this host's processes."""
        return range(self.node_rank * self.devices, (self.node_rank + 1) * self.devices)

    @property
    def command(self) -> list[str]:
        """The msrun command. It shows no log, since --tail_worker_log names a rank that does not exist."""
        world = self.devices * self.nodes
        options = {
            "worker_num": world,
            "local_worker_num": self.devices,
            "master_addr": self.master,
            "master_port": self.port,
            "node_rank": self.node_rank,
            "log_dir": self.log_dir,
            "cluster_time_out": self.timeout,
            "tail_worker_log": world,
            "join": True,
        }
        msrun = Path(sys.executable).parent / "msrun"
        return [str(msrun), *[f"--{key}={value}" for key, value in options.items()], str(self.script), *self.arguments]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment for msrun, built from `base`.

        msrun starts a plain `python`, so PATH begins with the folder of this Python. The processes of a host share its
        cores: OMP_NUM_THREADS is set to each one's part, unless `base` has it. The same holds for the time limits of
        Ascend's collectives (HCCL); MindSpore's limit for collectives on a CPU is fixed.
        """
        paths = [str(Path(sys.executable).parent), base.get("PATH", os.defpath)]
        modules = [str(ROOT), *([base["PYTHONPATH"]] if base.get("PYTHONPATH") else [])]
        limits = {name: str(self.timeout) for name in ("HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT")}
        own = {"PATH": os.pathsep.join(paths), "PYTHONPATH": os.pathsep.join(modules)}
        return {"GLOG_v": "3", **thread_limit(self.devices), **limits, **base, **own}


def free_port() -> int:
    """A port on which nothing listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def run_here(script: Path, arguments: Sequence[object], *, devices: int, folder: Path, seconds: float) -> None:
    """Run a program as a job on this machine, in ``folder``, and wait; errors show the end of the workers' logs."""
    job = Job(
        script=script, arguments=tuple(map(str, arguments)), log_dir=folder / "log", devices=devices, port=free_port()
    )
    environment = job.environment(os.environ)
    try:
        done = subprocess.run(
            job.command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{devices} processes of {script.name} took more than {seconds:g} s") from error
    if done.returncode:
        words = "\n".join(
            f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(job.log_dir.glob("worker*.log"))
        )
        raise UserError(f"{devices} processes ended with status {done.returncode}:\n{done.stderr[-1000:]}\n{words}")
