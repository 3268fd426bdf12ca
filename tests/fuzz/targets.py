"""What is fuzzed: files that people, other programs or a broken disk may spoil, and how each is read."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import yaml

from scripts.cluster import rank_table
from scripts.compare import read_result, table
from scripts.plot import plot
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.settings.yaml_config import load_config
from tests.fuzz import checkpoints
from tests.fuzz.mutations import damaged_bytes, damaged_value
from tests.support.paths import ROOT
from tests.support.profiles import profile
from tests.thor.report.test_html import run_folder
from thor.cli import plan
from thor.factors.blocks import BlockPlan
from thor.profile.crossing import choose, read_curves
from thor.profile.profile_file import Profile
from thor.report import html
from thor.runtime.errors import UserError
from thor.simulation.network import Link, Network
from thor.simulation.simulate import Settings, simulate
from thor.simulation.workload import layer_loads

Damage = Callable[[Random, bytes], bytes]


@dataclass(frozen=True)
class Target:
    """One kind of file.

    Attributes:
        name: What the file is.
        file: Its name in the folder of a case.
        make: Writes a good one, and all that is read with it.
        read: Reads it as users' commands do.
        refusals: The errors that are meant for users.
        damage: Spoils its bytes.
        check: Looks at what was read of a damaged file, and raises where that is silently wrong.
        recover: Does what the refusal says, and raises where something is lost.
        named: Whether a refusal names the file; a configuration's names the setting, which may be a flag's as well.
        share: Of all cases that are run; less for what takes long.
    """

    name: str
    file: str
    make: Callable[[Path], object]
    read: Callable[[Path], Any]
    refusals: tuple[type[Exception], ...]
    damage: Damage
    check: Callable[[Path, Any], None] = lambda folder, found: None
    recover: Callable[[Path], None] = lambda folder: None
    named: bool = True
    share: float = 1.0


def structured(parse: Callable[[bytes], Any], dump: Callable[[Any], bytes]) -> Damage:
    """Damage to the bytes of a file half of the time, else to what it holds."""

    def damage(random: Random, data: bytes) -> bytes:
        return damaged_bytes(random, data) if random.random() < 0.5 else dump(damaged_value(random, parse(data)))

    return damage


as_json = structured(json.loads, lambda value: json.dumps(value, indent=1).encode())
as_yaml = structured(yaml.safe_load, lambda value: yaml.safe_dump(value).encode())
as_lines = structured(
    lambda data: [json.loads(line) for line in data.decode().splitlines()[:-1]],
    lambda value: "".join(json.dumps(line) + "\n" for line in value).encode() if isinstance(value, list) else b"",
)


def _configuration(folder: Path) -> None:
    source = load_config(ROOT / "scripts/config/quickstart_thor.yaml").model_dump(mode="json")
    (folder / "config.yaml").write_text(yaml.safe_dump(source))


def _curves(folder: Path) -> None:
    (folder / "curves.csv").write_text(
        "dim, kept, time\n16, 0.1, 1e-4\n64, 0.4, 2e-4\n256, 0.8, 1e-3\n512, 1.0, 8e-3\n"
    )


def _network(folder: Path) -> None:
    network = Network.uniform(Link(1e-5, 3e-11), Link(2e-5, 8e-11))
    (folder / "network.json").write_text(json.dumps(network.to_dict()))


def _read_profile(folder: Path) -> Any:
    found = Profile.load(folder / "profile.json")
    return found.crossing(), found.plan(), found.largest_at_launch_floor(), found.to_dict()


def _read_network(folder: Path) -> Any:
    return Network.load(folder / "network.json").seconds("all_reduce", range(32), 1e8)


@functools.cache
def _estimates() -> list[Any]:
    loads = layer_loads(profile(), BlockPlan(block_size=16, split="block"))
    settings = Settings(step_ms=20.0, batch=32, factor_ms=8.0, precondition_ms=1.0, interval=50, factor_interval=5)
    network = Network.uniform(Link(1e-5, 3e-11))
    return [each for count in (1, 4, 8) for each in simulate(loads, settings, network, count, [0.5])]


def _measured(folder: Path) -> None:
    lines = [{"devices": n, "strategy": "all", "plain_ms": 21.5, "refresh_ms": 80} for n in (1, 4, 8)]
    (folder / "measured.json").write_text(json.dumps(lines))


def _read_measured(folder: Path) -> Any:
    path = folder / "measured.json"
    return plan.compared(_estimates(), plan.read_measured(path), path)


def _rank_table(folder: Path) -> None:
    hosts = [(f"10.0.0.{h}", [(d, f"192.168.{h}.{d + 1}") for d in range(4)]) for h in (1, 2)]
    (folder / "hccl.json").write_text(json.dumps(rank_table.make(hosts).model_dump()))


def _run(folder: Path) -> None:
    run_folder(folder)
    _configuration(folder)


def _read_run(folder: Path) -> Any:
    read_metrics(folder)
    return table([read_result(folder, "run")])


def _render(folder: Path) -> Any:
    return html.write(folder)


def _draw(folder: Path) -> Any:
    with tempfile.TemporaryDirectory() as elsewhere:
        plot([folder], Path(elsewhere) / "curves.png")


_summary = Target(
    "summary.json of a run, thor report", "summary.json", _run, _render, (UserError,), as_json, share=0.02
)
TARGETS = (
    Target("training configuration", "config.yaml", _configuration, lambda f: load_config(f / "config.yaml"),
           (UserError,), as_yaml, named=False),
    Target("block-size profile", "profile.json", lambda f: profile().save(f / "profile.json"), _read_profile,
           (ValueError,), as_json),
    Target("curves of block sizes", "curves.csv", _curves, lambda f: choose(*read_curves(f / "curves.csv")),
           (ValueError,), damaged_bytes),
    Target("measured network", "network.json", _network, _read_network, (ValueError,), as_json),
    Target("measured steps, thor plan", "measured.json", _measured,
           _read_measured, (ValueError,), as_json),
    Target("rank table", "hccl.json", _rank_table, lambda f: rank_table.read(f / "hccl.json"), (UserError,), as_json),
    Target("metrics.jsonl, compared", "metrics.jsonl", _run, _read_run, (UserError,), as_lines, named=False),
    Target("metrics.jsonl, curves drawn", "metrics.jsonl", _run, _draw, (UserError,), as_lines, share=0.02),
    replace(_summary, name="metrics.jsonl, thor report", file="metrics.jsonl", damage=as_lines),
    _summary,
    Target("checkpoint: tensors", checkpoints.NEWEST.with_suffix(".ckpt").name, checkpoints.make, checkpoints.resume,
           (UserError,), damaged_bytes, checkpoints.is_the_newest, checkpoints.use_the_one_before),
    Target("checkpoint: description", checkpoints.NEWEST.name, checkpoints.make, checkpoints.resume,
           (UserError,), as_json, checkpoints.is_the_newest, checkpoints.use_the_one_before),
    Target("best checkpoint: tensors", "best.ckpt", checkpoints.make, checkpoints.evaluate, (UserError,),
           damaged_bytes, checkpoints.is_the_newest, checkpoints.evaluate_the_last),
    Target("best checkpoint: description", "best.json", checkpoints.make, checkpoints.evaluate, (UserError,),
           as_json, checkpoints.is_the_newest, checkpoints.evaluate_the_last),
)  # fmt: skip
