"""``thor plan``: its table, numbers and picture agree; what is wrong is answered with one line."""

import json

import matplotlib.image
import pytest
from typer.testing import CliRunner

from tests.support.profiles import profile as plain_profile
from thor.cli import app
from thor.cli import plan as plan_command
from thor.simulation.network import Link, Network


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setattr(plan_command.console, "_width", 120)


@pytest.fixture
def path(tmp_path):
    plain_profile().save(tmp_path / "p.json")
    return tmp_path / "p.json"


def plan(path, *arguments):
    given = ["plan", "--profile", path, "--step-ms", "20", "--batch", "32", "--devices", "4,8", *arguments]
    return CliRunner().invoke(app.app, [str(argument) for argument in given])


def test_table_numbers_and_picture(path, tmp_path):
    out = tmp_path / "a folder [x]" / "plan.json"
    result = plan(path, "--factor-ms", "8", "--interval", "50", "--fractions", "0.5", "--out", out)
    assert result.exit_code == 0, result.output
    data = json.loads(out.read_text())
    assert [(e["devices"], e["strategy"]) for e in data["estimates"]] == [
        (devices, strategy) for devices in (4, 8) for strategy in ("naive", "all", "0.5", "one")
    ]
    settings = data["settings"]
    assert (settings["factor_ms"], settings["factor_interval"]) == (8.0, 5)
    assert settings["precondition_ms"] == plan_command.PRECONDITION_SHARE * 20
    rows = [line.split() for line in result.stdout.splitlines()]
    for estimate in data["estimates"]:
        row = next(r for r in rows if r[:2] == [str(estimate["devices"]), estimate["strategy"]])
        assert float(row[2]) == pytest.approx(estimate["step"] * 1e3, abs=0.005)
        assert float(row[-1].replace(",", "")) == pytest.approx(estimate["devices"] * 32 / estimate["step"], abs=0.5)
    assert f"wrote {out} and {out.with_suffix('.png')}" in result.stdout
    assert matplotlib.image.imread(out.with_suffix(".png")).std() > 0.05


def test_what_was_assumed_is_said(path):
    said = plan(path).stdout
    assert "assumed: gathering factors takes 16.00 ms" in said and "assumed: preconditioning takes 0.40 ms" in said
    assert "not measured" in said
    assert "assumed" not in plan(path, "--factor-ms", "8", "--precondition-ms", "1").stdout


def test_weights_outside_the_profiled_layers_count_or_are_said_to_be_missing(path, tmp_path):
    """A file of an earlier version does not tell how many there are."""
    profile, exact = plain_profile(), ("--factor-ms", "8", "--precondition-ms", "1")
    del profile.settings["other_entries"]
    profile.save(tmp_path / "old.json")
    assert "assumed: the network has no weights but those" in plan(tmp_path / "old.json", *exact).stdout
    profile.settings["other_entries"] = 10**7
    profile.save(tmp_path / "new.json")
    found = {}
    for name in ("old", "new"):
        plan(tmp_path / f"{name}.json", *exact, "--out", tmp_path / f"{name}.out.json")
        found[name] = json.loads((tmp_path / f"{name}.out.json").read_text())
    assert found["new"]["settings"]["other_gradient_bytes"] == 4 * 10**7
    old, new = (found[name]["estimates"][0]["parts"]["average_gradients"] for name in ("old", "new"))
    assert new > 10 * old


def test_a_profile_of_eigenbases_is_refused_with_the_cure(tmp_path):
    profile = plain_profile()
    profile.environment["inverse"] = "eigh"
    profile.save(tmp_path / "basis.json")
    result = plan(tmp_path / "basis.json")
    assert result.exit_code == 2
    assert "basis.json: it was measured with --precondition eigenbasis" in result.stderr
    assert "--precondition inverse" in result.stderr


def without_ends(profile):
    """A profile of the inner two of its four block sizes, 4 and 16."""
    profile.dims = profile.dims[1:-1]
    for layer in profile.layers:
        layer.cosine = {split: curve[1:-1] for split, curve in layer.cosine.items()}
        for factor in (layer.a, layer.g):
            factor.loss = {order: curve[1:-1] for order, curve in factor.loss.items()}
            factor.error = {split: curve[1:-1] for split, curve in factor.error.items()}
    return profile


def test_block_sizes_that_were_not_profiled_are_said_to_be_assumed(path):
    assert "inverting a block" not in plan(path, "--block-size", "64").stdout
    text = " ".join(plan(path, "--block-size", "999").stdout.split())
    assert "inverting a block" not in text  # no factor has more than 64 rows
    without_ends(plain_profile()).save(path)
    text = " ".join(plan(path, "--block-size", "999").stdout.split())
    assert "assumed: inverting a block of 60 takes its size cubed, from 16, the largest profiled" in text
    assert "assumed: inverting a block of 3 takes as long as one of 4, the smallest profiled" in text
    assert "thor profile --dims measures it" in text


def test_verdicts_name_the_fastest_and_the_price_of_less_memory(path):
    said = plan(path, "--bandwidth", "1e6", "--latency-us", "0", "--latency-between-us", "0",
                "--bandwidth-between", "1e6", "--precondition-ms", "4", "--fractions", "1").stdout  # fmt: skip
    assert "4 to 8 devices: one is fastest" in said  # nothing is paid for sending, and least is computed
    dear = plan(path, "--latency-us", "100").stdout
    # a group of half the devices keeps its largest rank as small as all of them do, and sends less
    assert "8 devices: 0.5 saves" in dear and "MiB a rank, for" in dear


def test_measured_links_and_measured_steps(path, tmp_path):
    network = Network.uniform(Link(1e-3, 0.0), algorithm="ring")
    (tmp_path / "network.json").write_text(json.dumps(network.to_dict()))
    measured = [{"devices": 4, "strategy": "all", "plain_ms": 52.8, "refresh_ms": 100}]
    (tmp_path / "measured.json").write_text(json.dumps(measured))
    result = plan(path, "--network", tmp_path / "network.json", "--measured", tmp_path / "measured.json")
    assert result.exit_code == 0, result.output
    row = next(line.split() for line in result.stdout.splitlines() if "plain" in line and "52.80" in line)
    # 20 ms, six hops of a ring of four, preconditioning 0.4 ms: half of what was measured
    assert "26.40" in row and "-50%" in row


def test_where_the_naive_way_wins_it_is_not_compared_with_itself(path):
    said = plan(path, "--latency-us", "1e6", "--latency-between-us", "1e6").stdout
    assert "4 to 8 devices: naive is fastest\n" in said
    row = next(line.split() for line in said.splitlines() if line.split()[:2] == ["4", "naive"])
    assert row[3] == "4020"  # four hops of a second for the gradients, and the step; no digits that do not fit


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--devices", "8,x"], ("--devices '8,x'", "8,64,256")),
        (["--devices", "0,8"], ("--devices must be at least 1", "0")),
        (["--devices", ""], ("--devices ''",)),
        (["--fractions", "half"], ("--fractions 'half'", "0.5,0.125")),
        (["--fractions", "2"], ("grad_worker_fraction must be finite and at least 0 and at most 1", "2")),
        (["--devices", "10", "--fractions", "0.3"], ("0.3 of 10 ranks is 3", "0.1, 0.2, 0.5, 1")),
        (["--step-ms", "0"], ("step_ms must be finite and greater than 0, but got 0.0",)),
        (["--step-ms", "nan"], ("step_ms must be finite", "nan")),
        (["--batch", "0"], ("batch must be at least 1",)),
        (["--step-devices", "0"], ("step_devices must be at least 1",)),
        (["--factor-ms", "-1"], ("factor_ms must be finite and at least 0", "-1")),
        (["--precondition-ms", "inf"], ("precondition_ms must be finite", "inf")),
        (["--interval", "0"], ("interval must be at least 1",)),
        (["--factor-interval", "0"], ("factor_interval must be at least 1",)),
        (["--interval", "5", "--factor-interval", "6"], ("factor_interval must be at most the interval, 5", "6")),
        (["--block-size", "0"], ("block_size must be at least 1",)),
        (["--split", "rank"], ("split must be one of block, block+mean, block+rank", "'rank'")),
        (["--per", "rank"], ("per must be one of layer, factor, block", "'rank'")),
        (["--overlap", "1.1"], ("overlap", "at most 1", "1.1")),
        (["--latency-us", "-1"], ("--latency-us must be finite and at least 0", "-1")),
        (["--bandwidth-between", "0"], ("--bandwidth-between (GB/s) must be finite and greater than 0",)),
        (["--node", "0"], ("node must be at least 1",)),
        (["--algorithm", "tree"], ("algorithm must be one of auto, ring, halving", "'tree'")),
        (["--network", "nowhere.json"], ("nowhere.json: no such file", "scripts/bench/collectives.py")),
        (["--measured", "nowhere.json"], ("--measured nowhere.json: cannot be read",)),
        (["--profile", "nowhere.json"], ("nowhere.json: no such profile", "thor profile")),
        (["--out", "plan.png"], ("--out plan.png", ".json")),
    ],
)
def test_bad_input_is_answered_with_one_line(path, arguments, words):
    result = plan(path, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words), result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ({}, ("must be a list", '"devices": 2')),
        ([], ("must be a list",)),
        ([{"devices": 2, "strategy": "all", "plain_ms": 1}], ("nothing is predicted for 2 devices", "4 all")),
        ([{"devices": 0, "strategy": "0.5", "plain_ms": 1}], ("nothing is predicted for 0 devices", "4 all")),
        ([{"devices": 4, "strategy": "all", "step_ms": 1}], ("'step_ms' must be one of plain_ms",)),
        ([{"devices": 4, "strategy": "all", "plain_ms": -1}], ("plain_ms must be a positive number", "-1")),
        ([{"devices": 4, "strategy": "all", "plain": 1}], ("'plain' must be one of plain_ms",)),
    ],
)
def test_measured_steps_say_what_they_must_be(path, tmp_path, lines, words):
    (tmp_path / "measured.json").write_text(json.dumps(lines))
    result = plan(path, "--measured", tmp_path / "measured.json")
    assert result.exit_code == 2 and result.stdout == ""
    assert all(word in result.stderr for word in words), result.stderr
