"""thor doctor: judgements on faked machines, and the command on this one."""

import json
import os
import socket

import pytest
from typer.testing import CliRunner

from thor.cli import ascend_findings, doctor, doctor_findings
from thor.cli.app import app
from thor.runtime import supported_versions

GIB = 2**30
NVIDIA = {"nvidia-smi": "/usr/bin/nvidia-smi", "nvcc": "/usr/local/cuda/bin/nvcc"}
ASCEND = {"npu-smi": "/usr/local/bin/npu-smi"}


def levels(findings):
    return [finding.level for finding in findings]


def test_versions():
    assert levels(doctor_findings.versions((3, 11, 9), "2.10.0", "1.26.4")) == ["ok", "ok", "ok"]
    assert levels(doctor_findings.versions((3, 12, 1), "2.7.1.post1", "1.26.4")) == ["warn", "ok", "ok"]
    assert "2.7.0, 2.7.1" in doctor_findings.versions((3, 12, 1), "2.6.0", "1.26.4")[1].text
    assert levels(doctor_findings.versions((3, 13, 0), "3.0.0", "2.1.0")) == ["warn", "warn", "fail"]
    assert "numpy<2" in doctor_findings.versions((3, 11, 9), "2.10.0", "2.1.0")[-1].cure


@pytest.mark.parametrize(
    ("wanted", "present", "tools", "environment", "level", "words"),
    [
        ("auto", ["CPU"], {}, {}, "ok", "CPU"),
        ("CPU", ["CPU"], NVIDIA, {}, "ok", "CPU"),
        ("auto", ["CPU", "GPU"], NVIDIA, {}, "ok", "CPU, GPU"),
        ("auto", ["CPU"], NVIDIA, {}, "warn", "cannot use the GPU"),
        ("GPU", ["CPU"], {}, {}, "fail", "nvidia-smi is not on PATH"),
        ("GPU", ["CPU"], {**NVIDIA, "nvcc": None}, {}, "fail", "CUDA not visible"),
        ("GPU", ["CPU"], {**NVIDIA, "nvcc": None}, {"CUDA_HOME": "/usr/local/cuda"}, "fail", "cannot use the GPU"),
        ("Ascend", ["CPU"], {}, {}, "fail", "npu-smi is not on PATH"),
        ("Ascend", ["CPU"], ASCEND, {}, "fail", "CANN not visible"),
        ("auto", ["CPU"], ASCEND, {"ASCEND_HOME_PATH": "/usr/local/Ascend"}, "warn", "cannot use Ascend"),
        ("Ascend", ["CPU", "Ascend"], ASCEND, {}, "ok", "Ascend"),
    ],
)
def test_devices(wanted, present, tools, environment, level, words):
    finding = doctor_findings.device(wanted, present, tools, environment)
    assert finding.level == level and words in finding.text and bool(finding.cure) == (level != "ok")


def test_msrun_must_start_this_python():
    assert doctor_findings.msrun("/env/bin/msrun", "/env/bin/python", "/env", "/env").level == "ok"
    assert (
        "would start /usr/bin/python" in doctor_findings.msrun("/env/bin/msrun", "/usr/bin/python", "/env", "/usr").text
    )
    assert doctor_findings.msrun(None, "/env/bin/python", "/env", "/env").text == "not on PATH"


@pytest.mark.parametrize(("free", "level"), [(GIB // 2, "fail"), (3 * GIB, "warn"), (20 * GIB, "ok")])
def test_amounts(free, level):
    assert doctor_findings.memory(free).level == doctor_findings.disk(free, "runs").level == level


@pytest.mark.parametrize(
    ("flags", "convolutions", "level"),
    [
        (["avx2", "avx512f"], "patches", "ok"),
        (["avx2", "avx512f"], "native", "warn"),
        (["avx2"], "native", "ok"),
        (["fp", "asimd"], "native", "ok"),
        (["sse4_2"], "native", "warn"),
        (None, "native", "warn"),
    ],
)
def test_instruction_sets(flags, convolutions, level):
    assert doctor_findings.instruction_set(flags, convolutions).level == level


def test_a_cache_of_compiled_graphs_is_warned_of():
    assert doctor_findings.cached_graphs(False).level == "ok" and "unset" in doctor_findings.cached_graphs(True).cure
    assert doctor_findings.cached_graphs(True).level == "warn"


@pytest.mark.parametrize(("skew", "level"), [(0.0, "ok"), (-1.9, "ok"), (30.0, "warn"), (-90.0, "fail")])
def test_clocks(skew, level):
    finding = doctor_findings.clock(skew)
    assert finding.level == level and ("ahead" if skew > 0 else "behind") in finding.text


def test_hosts_know_each_other_by_their_marks():
    findings = doctor_findings.hosts(["a", "b", "c"], {"a": 990.0, "b": 10.0}, 1000.0)
    assert levels(findings) == ["ok", "warn", "warn"]
    assert "990 s ago" in findings[1].text and "no mark" in findings[2].text


def test_a_mark_tells_the_skew_of_the_clock(tmp_path, monkeypatch):
    now, skew = doctor.leave_mark(tmp_path, "here")
    assert abs(skew) < 1.0 and (tmp_path / doctor.MARKS / "here").stat().st_mtime == now
    clock = doctor.time.time
    monkeypatch.setattr(doctor.time, "time", lambda: clock() + 100.0)
    assert doctor.leave_mark(tmp_path, "here")[1] == pytest.approx(100.0, abs=1.0)
    monkeypatch.setattr(doctor.time, "time", lambda: clock() - 100.0)
    assert doctor.leave_mark(tmp_path, "here")[1] == pytest.approx(-100.0, abs=1.0)


def test_a_port_is_free_until_somebody_listens():
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        number = listener.getsockname()[1]
        assert not doctor.is_free(number) and doctor_findings.port(number, False).level == "fail"
    assert doctor.is_free(number) and not doctor.is_free(70_000)
    for number in (0, 80, 70_000):  # which the launcher refuses
        found = doctor_findings.port(number, True)
        assert found.level == "fail" and "1024 to 65535" in found.cure


def test_the_environment_of_a_python(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    assert doctor.prefix_of(str(broken)) is None and doctor.prefix_of(None) is None
    assert doctor.prefix_of(doctor.sys.executable) == doctor.sys.prefix


def test_the_command(tmp_path, monkeypatch):
    (tmp_path / doctor.MARKS).mkdir()
    (tmp_path / doctor.MARKS / "other").touch()
    good = CliRunner().invoke(
        app, ["doctor", "--device", "cpu", "--shared", str(tmp_path), "--host", "other", "--json"]
    )
    report = json.loads(good.stdout)
    assert good.exit_code == 0 and report["ok"]
    found = {finding["name"]: finding["level"] for finding in report["findings"]}
    assert found["host other"] == found["shared folder"] == found["device"] == found["numpy"] == "ok"
    monkeypatch.setattr(doctor, "is_free", lambda port: port != 8118)
    bad = CliRunner().invoke(app, ["doctor", "--port", "8118", "--port", "8119", "--shared", str(tmp_path / "no")])
    assert bad.exit_code == 1
    assert (
        "fail port" in bad.stdout
        and "8119 is free" in bad.stdout
        and f"{tmp_path / 'no'}: no such folder" in bad.stdout
    )
    assert os.listdir(tmp_path) == [doctor.MARKS]


@pytest.mark.parametrize(
    ("wanted", "npu_smi", "names"),
    [
        ("CPU", "/usr/bin/npu-smi", []),
        ("auto", None, []),
        ("auto", "npu-smi", ["warn"] * 3),
        ("Ascend", None, ["fail"] * 3),
    ],
)
def test_what_an_ascend_needs_is_looked_for_where_an_ascend_is_wanted_or_there(wanted, npu_smi, names, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: npu_smi if name == "npu-smi" else None)
    monkeypatch.setattr(doctor, "stated_version", lambda path: None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    sought = ("cann", "driver", "cann's python")
    assert [finding.level for finding in doctor.examine(wanted, [], None, []) if finding.name in sought] == names


def test_the_versions_of_an_installation_are_read(tmp_path, monkeypatch):
    (tmp_path / "compiler").mkdir()
    (tmp_path / "compiler" / "version.info").write_text("Version=8.5.T5.0.B029\ntimestamp=20260101\n")
    (tmp_path / "driver.info").write_text("package_version=1\nVersion=25.5.0\n")
    for name in (ascend_findings.COMPILER, *supported_versions.CANN_PACKAGES):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setattr(ascend_findings, "DRIVER_FILE", str(tmp_path / "driver.info"))
    found = {each.name: each for each in doctor.examine("Ascend", [], None, [])}
    assert found["cann"].text.startswith("8.5.T5.0.B029;") and found["cann"].level == "ok"
    assert found["driver"].text.startswith("25.5.0;")
    assert found["cann's python"].level == "ok"
    assert doctor.stated_version(str(tmp_path / "none")) is None


def test_wrong_options():
    for options, message in (
        (["--device", "TPU"], "must be one of CPU, GPU, Ascend, auto"),
        (["--host", "a"], "needs"),
    ):
        result = CliRunner().invoke(app, ["doctor", *options])
        assert result.exit_code == 2 and message in result.output
