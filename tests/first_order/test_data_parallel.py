"""Two processes with half the batch each train as one process with all of it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.first_order import parallel_worker

ROOT = Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_processes_train_as_one(tmp_path):
    """To a rounding: the mean of two halves' gradients is summed in another order than the whole's."""
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {  # msrun starts plain "python"
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    command = [
        str(bin_folder / "msrun"), "--worker_num=2", "--local_worker_num=2", "--join=True",
        f"--master_port={free_port()}", f"--log_dir={tmp_path / 'log'}",
        str(ROOT / "tests" / "first_order" / "parallel_worker.py"), str(tmp_path),
    ]  # fmt: skip
    job = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    logs = "\n".join(f"{p.name}:\n{p.read_text()[-2000:]}" for p in sorted((tmp_path / "log").glob("worker*.log")))
    assert job.returncode == 0, f"{job.stdout[-1000:]}\n{job.stderr[-1000:]}\n{logs}"
    ranks = [np.load(tmp_path / f"rank{rank}.npz") for rank in range(2)]
    for name in parallel_worker.OPTIMIZERS:
        for key, wanted in parallel_worker.train(name, 0, 1).items():
            np.testing.assert_array_equal(ranks[0][key], ranks[1][key], err_msg=key)
            np.testing.assert_allclose(ranks[0][key], wanted, rtol=2e-4, atol=1e-5, err_msg=key)
