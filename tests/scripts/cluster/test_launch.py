"""Real jobs of two processes: one comes to grief; the launcher ends the job, says why, and goes on if told to."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import typer

from scripts.cluster import processes
from scripts.cluster.launch import launch, restart_arguments, shell_command
from scripts.cluster.msrun import ROOT, Job
from scripts.cluster.watch import Attempt, Outcome
from scripts.run_folder.folder_lock import folder_lock
from scripts.run_folder.heartbeat import Beat
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.settings.yaml_config import save_config
from tests.scripts.training.test_loop import last_tensors
from tests.support.msrun import starts_processes
from tests.support.tiny_runs import tiny_settings
from tests.support.waiting import wait_until
from thor.runtime.errors import UserError

#: each rank holds the inverses of some layers
SHARED = {"learning_rate": 0.01, "damping": 1.0, "clip": 1.0, "interval": 4, "block_size": 16}
SHARED["grad_worker_fraction"] = 0.0
FAULTY = ROOT / "tests" / "scripts" / "cluster" / "faulty.py"


def start(folder: Path, fault: str, *options: str, epochs: int = 2, after: int = 7) -> subprocess.Popen:
    """THOR, ten steps an epoch, a checkpoint each three; rank 1 has the fault when some steps are done."""
    settings = tiny_settings(folder, "thor", fault, checkpoint_every=3, epochs=epochs, thor=SHARED)
    save_config(settings, folder / f"{fault}.yaml")
    command = [sys.executable, str(ROOT / "scripts/cluster/launch.py"), "--devices", "2", *options]
    command += ["--log-dir", str(folder / f"log-{fault}"), "--script", str(FAULTY), "--"]
    command += [fault, str(after), "--config", str(folder / f"{fault}.yaml")]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def living(job: subprocess.Popen) -> list[str]:
    """Command lines of a job's processes, but its launcher's."""
    lines = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if job.args[-1] in line and "launch.py" not in line]


def ended(process: subprocess.Popen, timeout: float = 400) -> tuple[int, str, str]:
    """Exit status, output and errors of a launcher that leaves no process behind, nor signs of life beside the logs."""
    output, errors = process.communicate(timeout=timeout)
    assert not living(process)
    assert not list(Path(process.args[-1]).parent.rglob("rank-*.json"))
    return process.returncode, output, errors


@starts_processes
@pytest.mark.parametrize(
    ("fault", "after", "options", "message"),
    [
        # after the first compilation, which counts as starting, and before that of the plain step, which may take long
        ("stop", 3, ["--hang-seconds", "10"], r"is stopped by a signal \(SIGSTOP\): no sign of life for \d+ s"),
        ("raise", 7, [], "ValueError: the sky has fallen"),
    ],
)
def test_one_line_names_rank_and_cause(tmp_path, fault, after, options, message):
    status, _, errors = ended(start(tmp_path, fault, *options, after=after))
    assert status == 1
    assert re.fullmatch(rf"error: rank 1 after step {after} \(step\): {message} \[.*worker_1\.log\]\n", errors)


@starts_processes
def test_a_killed_worker_costs_nothing_but_time(tmp_path):
    """SIGKILL and one restart: the weights are those of an undisturbed job, bit for bit."""
    assert ended(start(tmp_path, "none"))[0] == 0
    status, output, errors = ended(start(tmp_path, "kill", "--restarts", "1"))
    assert status == 0, errors
    assert re.fullmatch(r"rank 1 after step 7 \(step\): killed by SIGKILL .*; restart 1 of 1\n", errors)
    assert f"results are in {tmp_path / 'kill'}" in output
    expected, found = last_tensors(tmp_path / "none"), last_tensors(tmp_path / "kill")
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert [line["step"] for line in read_metrics(tmp_path / "kill") if line["kind"] == "step"] == list(range(1, 21))


@starts_processes
def test_a_stop_file_that_was_made_before_a_worker_died_ends_the_restarted_job(tmp_path):
    status, _, errors = ended(start(tmp_path, "ask", "--restarts", "1"))
    assert status == 3 and errors.endswith("restart 1 of 1\nended by the file `stop` in the run's folder\n")


@starts_processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_all_ranks_end_after_the_same_step(tmp_path, number):
    """SIGTERM to the launcher, or its sudden death: one checkpoint, of the last line's step, and no orphans."""
    process, run = start(tmp_path, "none", epochs=10_000), tmp_path / "none"
    wait_until(lambda: read_metrics(run) or process.poll() is not None)
    process.send_signal(number)
    if number == signal.SIGKILL:
        process.communicate()
        wait_until(lambda: not living(process))
    else:
        status, output, errors = ended(process)
        assert (status, errors) == (130, "ended by request\n")
        assert re.search(r"ended after step \d+; checkpoint saved", output)
    last = max(line["step"] for line in read_metrics(run))
    assert max((run / "checkpoints").glob("step-*.json")).name == f"step-{last:08d}.json"


def ask_by_file(job: subprocess.Popen, run: Path) -> None:
    (run / "stop").touch()


def ask_one_rank(job: subprocess.Popen, run: Path) -> None:
    """As on the host of a drained pod: the launchers of the others are asked nothing."""
    (msrun,) = psutil.Process(job.pid).children()
    processes.roles(msrun.pid)["1"].send_signal(signal.SIGTERM)


@starts_processes
@pytest.mark.parametrize(
    ("ask", "status", "message"),
    [
        (ask_by_file, 3, "ended by the file `stop` in the run's folder\n"),
        (ask_one_rank, 130, "ended by request\n"),
    ],
)
def test_a_launcher_tells_the_stop_file_from_a_signal_elsewhere(tmp_path, ask, status, message):
    """A cluster starts a job again that ended as a host was drained, and none that the user has stopped."""
    process, run = start(tmp_path, "none", "--restarts", "1", epochs=10_000), tmp_path / "none"
    wait_until(lambda: read_metrics(run) or process.poll() is not None)
    ask(process, run)
    found, output, errors = ended(process)
    assert (found, errors) == (status, message)
    assert re.search(r"ended after step \d+; checkpoint saved", output)


def job(**values: object) -> Job:
    return Job(
        **{"script": FAULTY, "arguments": ("a b",), "log_dir": Path("log"), "devices": 4, "port": 8118, **values}
    )


def test_a_restart_removes_nothing():
    assert restart_arguments(["--config", "c.yaml", "--overwrite"]) == ("--config", "c.yaml", "--resume", "auto")
    assert restart_arguments(["--config", "c.yaml"], begun=False) == ("--config", "c.yaml", "--resume", "auto")
    assert restart_arguments(["--resume", "auto", "--seed", "1"]) == ("--resume", "auto", "--seed", "1")


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([[0, 0], [0], []], [True, True, False]),  # who tells nothing may have begun
        ([[0, 0], [0, 1], [0, 0]], [True, False, False]),  # begun once is begun: the third went on
    ],
)
def test_a_restart_overwrites_until_the_new_run_has_begun(tmp_path, monkeypatch, steps, kept):
    """Or it would go on with the old run, which the first attempt has died too early to remove."""
    tried: list[bool] = []
    began = set()

    def attempt(self):
        began.add(self._job.began)
        self._seen.beats = {rank: Beat(step, "starting", 0.0) for rank, step in enumerate([*steps, []][len(tried)])}
        if tried:
            assert ("--overwrite" in self._job.arguments) != ("--resume" in self._job.arguments)
        tried.append("--overwrite" in self._job.arguments)
        return Outcome(1, "died")

    monkeypatch.setattr(Attempt, "__call__", attempt)
    with pytest.raises(typer.Exit):
        launch(["none", "0", "--overwrite"], devices=2, restarts=len(steps), log_dir=tmp_path, script=FAULTY)
    assert tried == [True, *kept]
    assert len(began) == 1, "a stop file of the first attempt's time is for those after it"


def test_the_command_and_its_environment():
    several = job(nodes=2, node_rank=1, master="10.0.0.1")
    assert list(several.ranks) == [4, 5, 6, 7]
    for option in ("--worker_num=8", "--local_worker_num=4", "--node_rank=1", "--master_addr=10.0.0.1", "--join=True"):
        assert option in several.command
    assert (
        several.environment({"PATH": "/usr/bin", "HCCL_EXEC_TIMEOUT": "7"}).items()
        >= {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin",
            "HCCL_EXEC_TIMEOUT": "7",
            "HCCL_CONNECT_TIMEOUT": "600",
        }.items()
    )
    shown = shell_command(several)
    assert subprocess.run(["bash", "-n", "-c", shown], capture_output=True).returncode == 0 and "'a b'" in shown


def test_processes_share_the_cores_that_they_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(9)))
    assert job(devices=4).environment({})["OMP_NUM_THREADS"] == "2"
    assert job(devices=12).environment({})["OMP_NUM_THREADS"] == "1"
    assert job().environment({"OMP_NUM_THREADS": "5"})["OMP_NUM_THREADS"] == "5"
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert job(devices=4).environment({})["OMP_NUM_THREADS"] == "16"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"devices": 0}, "devices = 0: must be at least 1"),
        ({"nodes": 2, "node_rank": 2, "master": "host"}, "node-rank = 2: must be 0 to 1 with 2 nodes"),
        ({"nodes": 2}, "master = 127.0.0.1: with 2 nodes it must be an address all hosts can reach"),
        ({"port": 80}, "port = 80: must be 1024 to 65535"),
        ({"script": Path("no.py")}, "no.py: no such program"),
    ],
)
def test_what_is_refused(values, message):
    with pytest.raises(UserError, match=re.escape(message)):
        job(**values)


def test_a_second_job_does_not_take_the_logs_of_the_first(tmp_path):
    log = tmp_path / "attempt-0" / "worker_0.log"
    log.parent.mkdir(parents=True)
    log.write_text("step 1\n")
    with folder_lock(tmp_path, True), pytest.raises(UserError, match="another process .* or give another --log-dir"):
        launch(["none", "0"], devices=1, log_dir=tmp_path, script=FAULTY)
    assert log.is_file()
