"""``thor plan``: the step time on many devices, by simulation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from first_order.checks import check_int, number
from thor.factors.blocks import SPLITS, BlockPlan
from thor.profile.profile_file import Profile
from thor.runtime.json_files import parse
from thor.settings.gathering import GATHERS_PER_INTERVAL, gathered_every
from thor.simulation import report
from thor.simulation.network import Link, Network
from thor.simulation.simulate import Estimate, Settings, simulate
from thor.simulation.workload import layer_loads

console = Console()
USUAL_SHARES = (0.5, 0.125)  # of the ranks, which hold a layer's inverses
#: What gathering factors adds to a step, in first-order steps: ResNet-20's curvature step (1.82) less its plain step
#: (1.02), on a CPU (docs/speed.md, "What a step costs"). On other devices an assumption: give --factor-ms.
FACTOR_SHARE = 0.80
#: What preconditioning adds, as a share of a first-order step: ResNet-20's plain step there (1.02). Give
#: --precondition-ms where it is known.
PRECONDITION_SHARE = 0.02
#: GB/s of one port of an Ascend 910: HCCS has 240 Gbit/s, RoCE 100 Gbit/s (Huawei at Hot Chips 31, 2019). Assumed: a
#: node is eight devices on HCCS, though its two groups of four are joined by PCIe.
BANDWIDTH, BANDWIDTH_BETWEEN = 30.0, 12.5
#: Microseconds of a hop. Assumed: no published figure for HCCL is at hand.
LATENCY, LATENCY_BETWEEN = 10.0, 20.0


def plan_command(
    profile: Annotated[Path, typer.Option(help="what thor profile measured: layers, and seconds of an inverse")],
    step_ms: Annotated[float, typer.Option(help="a first-order step of --batch examples on a device")],
    batch: Annotated[int, typer.Option(help="examples a device")],
    devices: Annotated[str, typer.Option(help="how many to simulate, as in 8,64,256")] = "8,64,256,1024,4096",
    step_devices: Annotated[
        int, typer.Option(help="on how many --step-ms was measured; their all-reduce is taken off")
    ] = 1,
    factor_ms: Annotated[
        float | None, typer.Option(help=f"gathering all factors; {FACTOR_SHARE:g} x --step-ms where not given")
    ] = None,
    precondition_ms: Annotated[
        float | None,
        typer.Option(help=f"preconditioning all layers on a device; {PRECONDITION_SHARE:g} x --step-ms"),
    ] = None,
    interval: Annotated[int, typer.Option(help="steps between refreshes")] = 100,
    factor_interval: Annotated[
        int | None, typer.Option(help=f"steps between gatherings; 1/{GATHERS_PER_INTERVAL} of --interval")
    ] = None,
    block_size: Annotated[int | None, typer.Option(help="the profile's choice where not given")] = None,
    split: Annotated[str, typer.Option(help=", ".join(SPLITS))] = "block+mean",
    fractions: Annotated[
        str | None, typer.Option(help="shares of the ranks that hold a layer's inverses; 0.5,0.125 where they divide")
    ] = None,
    per: Annotated[str, typer.Option(help="what one rank inverts whole: layer, factor or block")] = "block",
    overlap: Annotated[float, typer.Option(help="share of the gradients' all-reduce behind the backward pass")] = 0.0,
    network: Annotated[
        Path | None, typer.Option(help="what scripts/bench/collectives.py measured, instead of the flags below")
    ] = None,
    latency_us: Annotated[float, typer.Option(help="of a hop inside a node")] = LATENCY,
    bandwidth: Annotated[float, typer.Option(help="GB/s inside a node")] = BANDWIDTH,
    latency_between_us: Annotated[float, typer.Option(help="of a hop between nodes")] = LATENCY_BETWEEN,
    bandwidth_between: Annotated[float, typer.Option(help="GB/s between nodes")] = BANDWIDTH_BETWEEN,
    node: Annotated[int, typer.Option(help="devices of a node")] = 8,
    algorithm: Annotated[str, typer.Option(help="ring, halving, or auto: the faster one")] = "auto",
    measured: Annotated[Path | None, typer.Option(help="JSON of measured steps to compare with")] = None,
    out: Annotated[Path | None, typer.Option(help="where the numbers go, as .json; the picture beside it")] = None,
) -> None:  # fmt: skip
    """Predict step times on many devices, for every way to share the inverses among them."""
    if out is not None and out.suffix != ".json":
        raise ValueError(f"--out {out}: give a name that ends in .json; the picture is written beside it")
    counts = _listed("--devices", devices, int)
    shares = _listed("--fractions", fractions, float) if fractions is not None else None
    for count in counts:
        check_int("--devices", count, 1)
    settings = Settings(
        step_ms=step_ms, step_devices=step_devices, batch=batch,
        factor_ms=FACTOR_SHARE * step_ms if factor_ms is None else factor_ms,
        precondition_ms=PRECONDITION_SHARE * step_ms if precondition_ms is None else precondition_ms,
        interval=interval,
        factor_interval=gathered_every(interval) if factor_interval is None else factor_interval,
        overlap=overlap, per=per,
    )  # fmt: skip
    if network is not None:
        links = Network.load(network)
    else:
        inside, between = _link("", latency_us, bandwidth), _link("-between", latency_between_us, bandwidth_between)
        links = Network.uniform(inside, between, node=node, algorithm=algorithm)
    times = read_measured(measured) if measured is not None else []
    found = Profile.load(profile)
    plan = BlockPlan(block_size=found.crossing().chosen if block_size is None else block_size, split=split)
    loads = layer_loads(found, plan)
    estimates = [
        each
        for count in counts
        for each in simulate(loads, settings, links, count, _dividing(count) if shares is None else shares)
    ]
    beside = compared(estimates, times, measured) if measured is not None else None
    name = found.settings.get("network", profile.stem)
    about = f"{name}, {plan.describe()}, inverses of {found.environment['device']}, refresh every {interval} steps"
    console.print(about, markup=False, highlight=False)
    console.print(report.table(estimates, batch))
    for line in report.verdicts(estimates):
        console.print(line, markup=False, highlight=False)
    for line in _assumed(settings, factor_ms is None, precondition_ms is None, network):
        console.print(line, style="yellow", markup=False, highlight=False)
    if beside is not None:
        console.print(beside)
    if out is not None:
        picture = out.with_suffix(".png")
        report.draw(estimates, picture, about)
        numbers = {"profile": str(profile), "plan": plan.describe(), "settings": asdict(settings),
                   "network": links.to_dict()}  # fmt: skip
        out.write_text(json.dumps(report.to_dict(estimates, numbers), indent=1), encoding="utf-8")
        console.print(f"wrote {out} and {picture}", markup=False, highlight=False, soft_wrap=True)


def _dividing(devices: int) -> list[float]:
    """Of the usual shares those that are groups of so many devices."""
    return [share for share in USUAL_SHARES if devices % round(1 / share) == 0]


def _listed(name: str, text: str, kind: type[int] | type[float]) -> list[Any]:
    """Numbers with commas between them, ascending, each once."""
    try:
        return sorted({kind(part) for part in text.split(",")})
    except ValueError:
        example = "8,64,256" if kind is int else "0.5,0.125"
        raise ValueError(f"{name} {text!r}: give numbers with commas between them, as in {example}") from None


def _link(which: str, latency_us: float, bandwidth: float) -> Link:
    """One kind of link from its two flags."""
    number(f"--latency{which}-us", latency_us, 0.0)
    number(f"--bandwidth{which} (GB/s)", bandwidth, 0.0, open_low=True)
    return Link(latency_us * 1e-6, 1e-9 / bandwidth)


def compared(estimates: Sequence[Estimate], times: list[dict[str, Any]], path: Path) -> Table:
    """Predictions beside the measured steps of a file; a ValueError names the file."""
    try:
        return report.comparison(estimates, times)
    except ValueError as error:
        raise ValueError(f"--measured {path}: {error}") from error


def read_measured(path: Path) -> list[dict[str, Any]]:
    """A list of measured steps; what a line must hold, report.comparison says."""
    try:
        data = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--measured {path}: cannot be read as JSON: {error}") from error
    if not isinstance(data, list) or not data or not all(isinstance(line, dict) for line in data):
        raise ValueError(
            f'--measured {path}: must be a list, as in [{{"devices": 2, "strategy": "all", "plain_ms": 210.0}}]'
        )
    return data


def _assumed(settings: Settings, factor: bool, precondition: bool, network: Path | None) -> list[str]:
    """What was not given, and was taken instead."""
    lines = []
    if factor:
        lines.append(f"assumed: gathering factors takes {report.milliseconds(settings.factor_ms)} ms "
                     f"({FACTOR_SHARE:g} steps, as ResNet-20 on a CPU); --factor-ms gives it")  # fmt: skip
    if precondition:
        lines.append(f"assumed: preconditioning takes {report.milliseconds(settings.precondition_ms)} ms "
                     f"({PRECONDITION_SHARE:g} steps, as ResNet-20 on a CPU); --precondition-ms gives it")  # fmt: skip
    if network is None:
        lines.append("links are those of the flags, not measured; --network takes measured ones")
    return lines
