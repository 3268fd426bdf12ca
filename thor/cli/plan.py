"""``thor plan``: the step time on many devices, by simulation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from thor.cli import arguments
from thor.cli.terminal import console, say
from thor.curvature.method_names import INVERSE
from thor.factors.blocks import SPLITS, BlockPlan
from thor.profile.profile_file import OTHER_ENTRIES, Profile
from thor.runtime.errors import UserError
from thor.runtime.json_files import parse
from thor.settings.gathering import GATHERS_PER_INTERVAL, default_factor_interval
from thor.simulation import report
from thor.simulation.network import Link, Network
from thor.simulation.simulate import Estimate, Settings, simulate
from thor.simulation.workload import LayerLoad, layer_loads, other_gradient_bytes

USUAL_SHARES = (0.5, 0.125)  # of the ranks, which hold a layer's inverses
#: What gathering factors adds to a step, in first-order steps: ResNet-20's curvature step (1.82) less its plain step
#: (1.02), on a CPU (docs/dev/performance-log.md). On other devices an assumption: give --factor-ms.
FACTOR_SHARE = 0.80
#: What preconditioning adds, as a share of a first-order step: ResNet-20's plain step there (1.02). Give
#: --precondition-ms where it is known.
PRECONDITION_SHARE = 0.02
#: GB/s of one port of an Ascend 910: HCCS has 240 Gbit/s, RoCE 100 Gbit/s (Huawei at Hot Chips 31, 2019). Assumed: a
#: node is eight devices on HCCS, though its two groups of four are joined by PCIe.
BANDWIDTH, BANDWIDTH_BETWEEN = 30.0, 12.5
#: Microseconds of a hop. Assumed: no published figure for HCCL is at hand.
LATENCY, LATENCY_BETWEEN = 10.0, 20.0


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What ``thor plan`` is told.

    Args:
        profile: file of ``thor profile``, with the layers and the seconds of an inverse.
        step_ms: a first-order step of ``batch`` examples on a device.
        batch: examples a device.
        devices: numbers of devices to simulate, as text.
        step_devices: number of devices on which ``step_ms`` was measured.
        factor_ms: time for gathering all factors; None for a share of ``step_ms``.
        precondition_ms: time for preconditioning all layers on a device; None for a share of ``step_ms``.
        interval: steps from one refresh to the next.
        factor_interval: steps from one gathering of factors to the next; None for the training's default.
        block_size: largest block; None for the profile's choice.
        split: how a factor is approximated.
        fractions: shares of the ranks that hold a layer's inverses, as text; None for the usual ones that divide.
        per: what one rank inverts whole: layer, factor or block.
        overlap: share of the gradients' all-reduce that hides behind the backward pass.
        network: file of measured links; None for those of the following four.
        latency_us: microseconds of a hop inside a node.
        bandwidth: GB/s inside a node.
        latency_between_us: microseconds of a hop between nodes.
        bandwidth_between: GB/s between nodes.
        node: devices of a node.
        algorithm: ring, halving or auto.
        measured: file of measured steps to compare with.
        out: where the numbers go; None writes nothing.
    """

    profile: Path
    step_ms: float
    batch: int
    devices: str
    step_devices: int
    factor_ms: float | None
    precondition_ms: float | None
    interval: int
    factor_interval: int | None
    block_size: int | None
    split: str
    fractions: str | None
    per: str
    overlap: float
    network: Path | None
    latency_us: float
    bandwidth: float
    latency_between_us: float
    bandwidth_between: float
    node: int
    algorithm: str
    measured: Path | None
    out: Path | None

    def __post_init__(self) -> None:
        if self.out is not None:
            arguments.json_with_picture("--out", self.out)
        for count in self.counts:
            self.shares(count)
        _ = self.simulation, self.links, self.times  # each checks its part

    @cached_property
    def counts(self) -> list[int]:
        """The numbers of devices to simulate."""
        return arguments.counts("--devices", self.devices)

    def shares(self, devices: int) -> list[float]:
        """Shares of ``devices`` ranks that hold a layer's inverses."""
        if self.fractions is not None:
            return arguments.fractions("--fractions", self.fractions)
        return [share for share in USUAL_SHARES if devices % round(1 / share) == 0]

    @cached_property
    def simulation(self) -> Settings:
        """The settings of the simulation, with what is assumed where a time was not given."""
        gathering = default_factor_interval(self.interval) if self.factor_interval is None else self.factor_interval
        return Settings(
            step_ms=self.step_ms, step_devices=self.step_devices, batch=self.batch,
            factor_ms=FACTOR_SHARE * self.step_ms if self.factor_ms is None else self.factor_ms,
            precondition_ms=PRECONDITION_SHARE * self.step_ms if self.precondition_ms is None else self.precondition_ms,
            interval=self.interval,
            factor_interval=gathering, overlap=self.overlap, per=self.per,
        )  # fmt: skip

    @cached_property
    def links(self) -> Network:
        """The links among the devices: measured ones, or those of the flags."""
        if self.network is not None:
            return Network.load(self.network)
        inside = _link("", self.latency_us, self.bandwidth)
        between = _link("-between", self.latency_between_us, self.bandwidth_between)
        return Network.uniform(inside, between, node=self.node, algorithm=self.algorithm)

    @cached_property
    def times(self) -> list[dict[str, Any]] | None:
        """The measured steps to compare with."""
        return None if self.measured is None else read_measured(self.measured)

    def blocks(self, found: Profile) -> BlockPlan:
        """How the factors of a profiled network are cut."""
        size = found.crossing().chosen if self.block_size is None else self.block_size
        return BlockPlan(block_size=size, split=self.split)

    def estimates(self, loads: Sequence[LayerLoad], simulation: Settings) -> list[Estimate]:
        """Every strategy on every number of devices."""
        return [
            each for count in self.counts for each in simulate(loads, simulation, self.links, count, self.shares(count))
        ]

    def comparison(self, estimates: Sequence[Estimate]) -> Table | None:
        """A table of predictions and measured steps; None where no file of measured steps was given."""
        if self.measured is None or self.times is None:
            return None
        return compared(estimates, self.times, self.measured)


def plan(
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
    settings = PlanSettings(**locals())
    found = Profile.load(settings.profile)
    if found.of != INVERSE:
        raise UserError(
            f"--profile {settings.profile}: it was measured with --precondition eigenbasis, and the simulated job "
            f"inverts; measure one with --precondition inverse"
        )
    blocks = settings.blocks(found)
    loads = layer_loads(found, blocks)
    simulation = replace(settings.simulation, other_gradient_bytes=other_gradient_bytes(found))
    estimates = settings.estimates(loads, simulation)
    comparison = settings.comparison(estimates)
    about = (
        f"{found.settings.get('network', settings.profile.stem)}, {blocks.describe()}, "
        f"inverses of {found.environment['device']}, refresh every {settings.interval} steps"
    )
    say(about, wrap=True)
    console.print(report.table(estimates, settings.batch))
    for line in report.verdicts(estimates):
        say(line, wrap=True)
    for line in (*_assumed(settings, found), *_extrapolated(loads, found.dims)):
        say(line, "yellow", wrap=True)
    if comparison is not None:
        console.print(comparison)
    if settings.out is not None:
        numbers = {
            "profile": str(settings.profile), "plan": blocks.describe(), "settings": asdict(simulation),
            "network": settings.links.to_dict(),
        }  # fmt: skip
        _write(settings.out, estimates, numbers, about)


def _write(out: Path, estimates: Sequence[Estimate], numbers: dict[str, Any], about: str) -> None:
    """Write the numbers as JSON, and the picture under the same name with .png."""
    picture = out.with_suffix(".png")
    report.draw(estimates, picture, about)
    out.write_text(json.dumps(report.to_dict(estimates, numbers), indent=1), encoding="utf-8")
    say(f"wrote {out} and {picture}")


def _link(which: str, latency_us: float, bandwidth: float) -> Link:
    """One kind of link from its two flags."""
    arguments.not_negative(f"--latency{which}-us", latency_us)
    arguments.positive(f"--bandwidth{which} (GB/s)", bandwidth)
    return Link(latency_us * 1e-6, 1e-9 / bandwidth)


def compared(estimates: Sequence[Estimate], times: list[dict[str, Any]], path: Path) -> Table:
    """A table of predictions and the measured steps of a file; a ValueError names the file."""
    try:
        return report.comparison(estimates, times)
    except ValueError as error:
        raise ValueError(f"--measured {path}: {error}") from error


def read_measured(path: Path) -> list[dict[str, Any]]:
    """The list of measured steps in a file; :func:`thor.simulation.report.comparison` checks each step."""
    try:
        data = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--measured {path}: cannot be read as JSON: {error}") from error
    if not isinstance(data, list) or not data or not all(isinstance(line, dict) for line in data):
        raise ValueError(
            f'--measured {path}: must be a list, as in [{{"devices": 2, "strategy": "all", "plain_ms": 210.0}}]'
        )
    return data


def _assumed(settings: PlanSettings, found: Profile) -> list[str]:
    """A line for each number that was assumed, because it was not given."""
    lines = []
    simulation = settings.simulation
    if settings.factor_ms is None:
        lines.append(f"assumed: gathering factors takes {report.milliseconds(simulation.factor_ms)} ms "
                     f"({FACTOR_SHARE:g} steps, as ResNet-20 on a CPU); --factor-ms gives it")  # fmt: skip
    if settings.precondition_ms is None:
        lines.append(f"assumed: preconditioning takes {report.milliseconds(simulation.precondition_ms)} ms "
                     f"({PRECONDITION_SHARE:g} steps, as ResNet-20 on a CPU); --precondition-ms gives it")  # fmt: skip
    if OTHER_ENTRIES not in found.settings:
        lines.append("assumed: the network has no weights but those of the profiled layers; a profile of an earlier "
                     "version does not tell, and a new one does")  # fmt: skip
    if settings.network is None:
        lines.append("links are those of the flags, not measured; --network takes measured ones")
    return lines


def _extrapolated(loads: Sequence[LayerLoad], dims: Sequence[int]) -> list[str]:
    """A line where blocks are larger or smaller than all that were profiled."""
    sizes = [factor.size for load in loads for factor in load.factors]
    lines = []
    if max(sizes) > dims[-1]:
        lines.append(f"assumed: inverting a block of {max(sizes)} takes its size cubed, from {dims[-1]}, the largest "
                     f"profiled; thor profile --dims measures it")  # fmt: skip
    if min(sizes) < dims[0]:
        lines.append(f"assumed: inverting a block of {min(sizes)} takes as long as one of {dims[0]}, the smallest "
                     f"profiled; thor profile --dims measures it")  # fmt: skip
    return lines
