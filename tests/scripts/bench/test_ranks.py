"""The measurement of 1, 2, 4 processes: a real job of two, its files, and what it refuses before it starts any."""

import json
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.jobs]


def bench(*arguments):
    command = [sys.executable, str(ROOT / "scripts" / "bench" / "ranks.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def test_two_processes(tmp_path):
    out = tmp_path / "runs" / "ranks.json"
    size = ["--network", "lenet", "--batch", 2, "--rounds", 1]
    job = bench(*size, "--processes", 2, "--strategies", "one", "apart", "--out", out)
    assert job.returncode == 0, job.stderr
    apart, line = json.loads(out.read_text())["jobs"]
    assert apart["strategy"] == "apart" and not any(apart["bytes"].values())
    assert "2 processes, one: " in job.stdout
    weights, sent = 4 * 61706, line["bytes"]
    assert (sent["first_order"], sent["plain"]) == (weights, 2 * weights + 8)
    assert sent["plain"] < sent["curvature"] < sent["refresh"]
    assert all(0 < value < 60_000 for value in line["ms"].values())
    (for_plan,) = json.loads((out.parent / "ranks-2.json").read_text())
    times = {f"{kind}_ms": line["ms"][kind] for kind in ("plain", "curvature", "refresh")}
    assert for_plan == {"devices": 2, "strategy": "one", **times}
    assert f"thor plan --devices 2 --step-ms {apart['ms']['first_order']:.1f} --precondition-ms " in job.stdout
    again = bench(*size, "--processes", 2, "--strategies", "one", "--out", out)
    assert again.returncode == 0 and "2 processes, one: " not in again.stdout, "what is there is not measured again"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"network": "lenet", "batch": 99, "rounds": 9, "jobs": []}', "was measured with other settings"),
        ("{", "cannot be read as results of this program"),
    ],
)
def test_a_file_of_something_else_is_not_overwritten(text, words, tmp_path):
    out = tmp_path / "ranks.json"
    out.write_text(text)
    job = bench("--network", "lenet", "--batch", 2, "--out", out)
    assert job.returncode == 2 and words in job.stderr and "another --out" in job.stderr
    assert out.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch", 0], "--batch must be at least 1, but got 0"),
        (["--rounds", 0], "--rounds must be at least 1, but got 0"),
        (["--processes", 2, 0], "--processes must be at least 1 each, but got 0"),
    ],
)
def test_what_is_refused(arguments, words):
    job = bench(*arguments)
    assert job.returncode == 2 and words in job.stderr and "Traceback" not in job.stderr
