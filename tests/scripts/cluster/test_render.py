"""Job files: they are what the cluster's documents say, and their commands are what the launcher takes."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field
from typer.testing import CliRunner

from scripts.cluster.msrun import ROOT
from scripts.cluster.render import app
from scripts.common.errors import INTERRUPTED, STOPPED, USAGE_ERROR
from thor.runtime.errors import UserError

SHELLCHECK = Path(sys.executable).parent / "shellcheck"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Metadata(Strict):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    namespace: str
    labels: dict[str, str]


class Policy(Strict):
    """A lifecycle policy: an event or an exit code, and what is done then."""

    event: Literal["*", "PodFailed", "PodEvicted", "TaskCompleted", "TaskFailed", "Unknown"] | None = None
    exitCode: Annotated[int, Field(ge=1)] | None = None
    action: Literal["AbortJob", "RestartJob", "RestartTask", "TerminateJob", "CompleteJob", "ResumeJob"]


class Container(Strict):
    name: str
    image: str
    workingDir: str
    command: list[str]
    args: list[str]
    env: list[dict[Literal["name", "value"], str]]
    resources: dict[Literal["requests", "limits"], dict[str, str | int]]
    volumeMounts: list[dict[Literal["name", "mountPath"], str]]


class Pod(Strict):
    restartPolicy: Literal["Never", "OnFailure"]
    terminationGracePeriodSeconds: int
    affinity: dict[str, Any]
    containers: list[Container]
    volumes: list[dict[str, Any]]


class Template(Strict):
    metadata: dict[Literal["labels"], dict[str, str]]
    spec: Pod


class Task(Strict):
    name: str
    replicas: int
    template: Template


class Spec(Strict):
    schedulerName: Literal["volcano"]
    queue: str
    minAvailable: int
    maxRetry: int
    policies: list[Policy]
    plugins: dict[Literal["env", "svc", "ssh"], list[str]]
    tasks: list[Task]


class VolcanoJob(Strict):
    apiVersion: Literal["batch.volcano.sh/v1alpha1"]
    kind: Literal["Job"]
    metadata: Metadata
    spec: Spec


def rendered(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


VOLCANO = [
    "volcano",
    "--name",
    "r50",
    "--config",
    "scripts/config/quickstart_thor.yaml",
    "--image",
    "registry/ms:2.10",
    "--claim",
    "data",
]
SLURM = ["slurm", "--name", "r50", "--config", "scripts/config/quickstart_thor.yaml"]


@pytest.mark.parametrize(("nodes", "restarts"), [(1, 0), (4, 3)])
def test_volcano(nodes, restarts, tmp_path):
    size = ["--nodes", nodes, "--restarts", restarts]
    text = rendered(*VOLCANO, *size, "--", "--optimizer", "momentum", "--data.folder", "a b$(c)$$(d)$$e")
    job = VolcanoJob.model_validate(yaml.safe_load(text))
    assert restarts_allowed(job.spec.maxRetry) == restarts
    assert [action_at(status, job.spec.policies) for status in (1, USAGE_ERROR, STOPPED, INTERRUPTED)] == [
        "RestartJob", "TerminateJob", "TerminateJob", "RestartJob",
    ]  # fmt: skip
    task = job.spec.tasks[0]
    container = task.template.spec.containers[0]
    assert task.replicas == job.spec.minAvailable == nodes
    assert container.resources["requests"] == container.resources["limits"]
    assert container.resources["limits"]["huawei.com/Ascend910"] == 8
    assert container.env == [{"name": "OMP_NUM_THREADS", "value": "8"}] and container.resources["limits"]["cpu"] == "64"
    mounted = {mount["name"] for mount in container.volumeMounts}
    assert mounted == {volume["name"] for volume in task.template.spec.volumes}
    command = as_kubernetes_reads(container.args[0])
    taken = launched(command.replace("exec python", sys.executable, 1), {"VC_TASK_INDEX": str(nodes - 1)}, tmp_path)
    assert f"--worker_num={8 * nodes}" in taken and f"--node_rank={nodes - 1}" in taken
    assert f"--master_addr={'127.0.0.1' if nodes == 1 else 'r50-worker-0.r50'}" in taken
    settings = ["--optimizer", "momentum", "--data.folder", "a b$(c)$$(d)$$e", "--out", "/shared/runs/r50"]
    assert taken[-10:] == ["--config", "scripts/config/quickstart_thor.yaml", "--resume", "auto", *settings]


def as_kubernetes_reads(text: str) -> str:
    """$$ is one $, and $(NAME) a variable (third_party/forked/golang/expansion); of no variable there is a value."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda found: f"<{found[1]}>" if found[1] else "$", text)


def test_names_that_yaml_would_take_for_something_else():
    named = ["--name", "on", "--image", "12:30", "--claim", "1", "--queue", "2024", "--namespace", "true"]
    text = rendered("volcano", "--config", "scripts/config/quickstart_thor.yaml", "--memory", "8G", *named)
    job = VolcanoJob.model_validate(yaml.safe_load(text))
    assert (job.metadata.name, job.metadata.namespace, job.spec.queue) == ("on", "true", "2024")
    assert job.spec.tasks[0].template.spec.containers[0].image == "12:30"
    assert '"1"' in text and job.spec.tasks[0].template.spec.containers[0].resources["limits"]["memory"] == "8G"


def test_jobs_of_one_host_have_ports_apart():
    """Each start of a job has one of its own; job numbers that follow each other share a host."""
    text = rendered(*SLURM, "--restarts", "3")
    (line,) = [line for line in text.splitlines() if line.startswith("PORT=")]

    def first(job):
        script = f"SLURM_JOB_ID={job}; {line}\necho $PORT"
        return int(subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout)

    taken = [first(job) + attempt for job in (1000, 1001, 1002) for attempt in range(4)]
    assert len(set(taken)) == len(taken) and 1024 <= min(taken) and max(taken) <= 65535


def restarts_allowed(max_retry: int) -> int:
    """How often Volcano starts a job again that goes on failing (pkg/controllers/job/state: running, restarting)."""
    count = 1  # raised at each restart, and looked at before the job runs again
    while count < (max_retry or 3):
        count += 1
    return count - 1


def action_at(status: int, policies: list[Policy]) -> str:
    """What Volcano does about a pod that failed with a status: the first policy that fits."""
    fitting = (each.action for each in policies if each.event in ("PodFailed", "*") or each.exitCode == status)
    return next(fitting, "none")


def launched(command: str, environment: dict[str, str], folder: Path) -> list[str]:
    """The msrun command that a shell's launcher would run."""
    shown = subprocess.run(
        ["bash", "-c", command.replace("launch.py", "launch.py --dry-run", 1)],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    return shlex.split(shown.stdout)


def test_slurm(tmp_path):
    path = tmp_path / "jobs" / "job.sh"
    text = rendered(*SLURM, "--nodes", 2, "--devices", 4, "--repository", ROOT, "--file", path, "--", "--out", "a b$c")
    assert text == ""
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0
    checked = subprocess.run([str(SHELLCHECK), str(path)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    srun = f'while [[ $1 == -* ]]; do echo "$1" >> {tmp_path}/options; shift; done; exec "$@"'
    for name, body in (("scontrol", "echo first; echo second"), ("srun", srun), ("python", PYTHON)):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = path.read_text().replace(f"export PATH={ROOT}/.venv/bin:", f"export PATH={tmp_path}:")
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_NODELIST": "x[1-2]", "SLURM_JOB_ID": "123456"}
    environment |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "1", "SLURM_CPUS_PER_TASK": "24"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "options").read_text().splitlines() == ["--kill-on-bad-exit=1", "--cpus-per-task=24"]
    taken = shlex.split(done.stdout)
    for option in ("--worker_num=8", "--node_rank=1", "--master_addr=first", "--master_port=53824"):
        assert option in taken
    assert taken[-6:] == ["--config", "scripts/config/quickstart_thor.yaml", "--resume", "auto", "--out", "a b$c"]


PYTHON = f'script=$1; shift; exec {sys.executable} "$script" --dry-run "$@"'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*VOLCANO, "--name", "R50"], "name = 'R50': must be lower-case letters"),
        ([*VOLCANO, "--image", "a b"], "image = 'a b': must be as in registry/name:tag"),
        ([*VOLCANO, "--memory", "lots"], "memory = 'lots': must be as in 256Gi"),
        ([*VOLCANO, "--memory", "8K"], "memory = '8K': must be as in 256Gi, as Kubernetes has it"),
        ([*SLURM, "--memory", "8Gi"], "memory = '8Gi': must be as in 256G, as Slurm has it"),
        ([*VOLCANO, "--name", "2024"], "name = '2024': must be lower-case letters"),
        ([*VOLCANO, "--shared", "data"], "shared = 'data': must be an absolute path"),
        ([*VOLCANO, "--", "--out", "a\nb"], "must be one line"),
        ([*SLURM, "--time", "soon"], "time = 'soon': must be as in 24:00:00"),
        ([*SLURM, "--gres", "npu 8"], "gres = 'npu 8': must be as in npu:8"),
        ([*SLURM, "--file", "/dev/null/x"], "/dev/null/x: cannot be written (File exists)"),
        ([*SLURM, "--file", "."], ".: cannot be written (Is a directory): there is no job file yet; give another path"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(UserError, match=re.escape(message)):
        rendered(*arguments)
