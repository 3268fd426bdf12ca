"""The micro-benchmark of collectives: two real processes, and what it refuses before it starts any."""

import json
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from thor.simulation.network import COLLECTIVES, Network

pytestmark = [pytest.mark.slow, pytest.mark.jobs]


def bench(*arguments):
    command = [sys.executable, str(ROOT / "scripts" / "bench" / "collectives.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_two_processes_are_measured_and_the_network_can_be_planned_with(tmp_path):
    out = tmp_path / "runs" / "network.json"
    job = bench("--processes", 2, "--rounds", 1, "--sizes", 4096, 1048576, "--out", out)
    assert job.returncode == 0, job.stderr
    data, network = json.loads(out.read_text()), Network.load(out)
    assert {(s["collective"], s["ranks"], s["size"]) for s in data["samples"]} == {
        (name, 2, size) for name in COLLECTIVES for size in (4096, 1048576)
    }
    for sample in data["samples"]:  # two sizes, two unknowns
        fitted = network.seconds(sample["collective"], range(2), sample["size"])
        assert 0 < sample["seconds"] < 10
        assert sample["seconds"] / 3 <= fitted <= sample["seconds"] * 3
    assert set(data["residual"]) == set(COLLECTIVES) and data["sizes"] == [4096, 1048576]
    assert "cores, MindSpore" in data["host"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--processes", 1], ("--processes must be at least 2 each", "got 1")),
        (["--rounds", 0], ("--rounds must be at least 1", "got 0")),
        (["--sizes", 4096], ("--sizes must be at least two different numbers",)),
        (["--sizes", 8, 4096, "--processes", 4], ("at least 16 bytes",)),
    ],
)
def test_bad_input_starts_no_process(arguments, words):
    job = bench(*arguments)
    assert job.returncode == 2 and job.stderr.count("\n") == 1
    assert all(word in job.stderr for word in ("error: ", *words)), job.stderr
