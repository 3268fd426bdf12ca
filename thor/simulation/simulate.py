"""The time of a training step on many devices, part by part, for every placement strategy (pure).

    plain step      = compute + average gradients + precondition + spread preconditioned gradients
    curvature step  = plain step + gather factors + average factors
    refresh         = curvature step + invert + exchange inverses
    step            = plain step + (gather + average factors) / factor interval + (invert + exchange) / interval

All ranks wait for the slowest rank or group in each part. Parts do not overlap, except that a share ``overlap`` of the
gradients' all-reduce is hidden. Every collective is one fused message of float32. A refresh counts all layers, although
the trace rule may skip some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from first_order.checks import check_int, number
from thor.distributed.placement import PER, Grid, Placement, place
from thor.simulation.network import Network
from thor.simulation.workload import LayerLoad

NAIVE = "naive"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The inputs of the simulation that a profile does not contain.

    Args:
        step_ms: time of a first-order step (forward, backward, update) with ``batch`` examples per device.
        step_devices: devices with which ``step_ms`` was measured; their all-reduce of gradients is subtracted.
        batch: examples per device.
        factor_ms: time that gathering all factors adds to a step.
        precondition_ms: time to precondition all layers on one device.
        interval: steps between refreshes.
        factor_interval: steps between curvature steps.
        overlap: share of the gradients' all-reduce that is hidden behind the backward pass.
        per: unit of work that one rank inverts (see :func:`thor.distributed.placement.place`).
        other_gradient_bytes: bytes of the gradients of weights that the profile does not hold, such as embeddings.
    """

    step_ms: float
    step_devices: int = 1
    batch: int
    factor_ms: float
    precondition_ms: float
    interval: int
    factor_interval: int
    overlap: float = 0.0
    per: str = "block"
    other_gradient_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("step_ms", "factor_ms", "precondition_ms"):
            number(name, getattr(self, name), 0.0, open_low=name == "step_ms")
        number("overlap", self.overlap, 0.0, 1.0)
        for name in ("step_devices", "batch", "interval", "factor_interval"):
            check_int(name, getattr(self, name), 1)
        if self.factor_interval > self.interval:
            raise ValueError(
                f"factor_interval must be at most the interval, {self.interval}, but got {self.factor_interval}: "
                "a refresh needs fresh factors"
            )
        if self.per not in PER:
            raise ValueError(f"per must be one of {', '.join(PER)}, but got {self.per!r}")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Seconds of each part of a step: per occurrence, or per step if amortised."""

    compute: float
    average_gradients: float
    precondition: float
    spread_gradients: float
    gather_factors: float
    average_factors: float
    invert: float
    exchange_inverses: float

    @property
    def plain(self) -> float:
        """Seconds of a plain step, without curvature."""
        return self.compute + self.average_gradients + self.precondition + self.spread_gradients

    @property
    def curvature(self) -> float:
        """Seconds of a curvature step, which gathers factors."""
        return self.plain + self.gather_factors + self.average_factors

    @property
    def refresh(self) -> float:
        """Seconds of a curvature step with a refresh: the sum of all parts."""
        return self.curvature + self.invert + self.exchange_inverses

    def amortised(self, interval: int, factor_interval: int) -> Parts:
        """The mean seconds of each part per step."""
        every = {"gather_factors": factor_interval, "average_factors": factor_interval,
                 "invert": interval, "exchange_inverses": interval}  # fmt: skip
        return Parts(**{f.name: getattr(self, f.name) / every.get(f.name, 1) for f in fields(self)})


@dataclass(frozen=True)
class Estimate:
    """The prediction for one strategy and number of devices.

    ``parts`` holds seconds per occurrence, ``per_step`` mean seconds per step, and ``memory`` the bytes of curvature
    state on the rank that holds most. ``workers`` is the number of ranks that hold a layer's inverses.
    """

    devices: int
    strategy: str
    workers: int
    parts: Parts
    per_step: Parts
    memory: int

    @property
    def step(self) -> float:
        """Mean seconds of a step."""
        return self.per_step.refresh


def _share(workers: int, devices: int) -> str:
    """The name of a strategy: its fraction of gradient workers, after rounding to ranks."""
    return f"{workers / devices:.4g}"


def share_name(devices: int, name: str) -> str:
    """The name of a strategy given as a fraction with any number of digits; other names are returned unchanged."""
    try:
        share = float(name)
    except ValueError:
        return name
    return _share(round(devices * share), devices) if 0 < share < 1 else name


def strategies(devices: int, fractions: Sequence[float]) -> dict[str, Grid]:
    """Grids by name: "all", one for each fraction that gives neither one nor all gradient workers, and "one"."""
    grids = {"all": Grid.from_fraction(devices, 1.0)}
    for fraction in sorted(set(fractions), reverse=True):
        grid = Grid.from_fraction(devices, fraction)
        if 1 < grid.workers < devices:
            grids[_share(grid.workers, devices)] = grid
    if devices > 1:
        grids["one"] = Grid.from_fraction(devices, 0.0)
    return grids


def simulate(
    loads: Sequence[LayerLoad], settings: Settings, network: Network, devices: int, fractions: Sequence[float] = ()
) -> list[Estimate]:
    """Estimates for every strategy, the naive one first: there every rank inverts all factors and sends nothing."""
    grids = strategies(devices, fractions)
    found = [_naive(loads, settings, network, grids["all"])]
    work = [factor.work for load in loads for factor in load.factors]
    for name, grid in grids.items():
        found.append(_estimate(name, loads, settings, network, place(work, grid, per=settings.per)))
    return found


def _preconditioning(loads: Sequence[LayerLoad], settings: Settings) -> list[float]:
    """Seconds to precondition each layer: ``precondition_ms`` divided in proportion to operations."""
    total = sum(load.operations for load in loads)
    return [settings.precondition_ms * 1e-3 * load.operations / total for load in loads]


def _common(loads: Sequence[LayerLoad], settings: Settings, network: Network, devices: int) -> dict[str, float]:
    """The parts that are the same for all strategies."""
    gradients = sum(load.gradient_bytes for load in loads) + settings.other_gradient_bytes
    factors = sum(factor.averaged_bytes for load in loads for factor in load.factors)
    exposed = 1 - settings.overlap
    included = exposed * network.seconds("all_reduce", range(settings.step_devices), gradients)
    compute = settings.step_ms * 1e-3 - included
    if compute <= 0:
        raise ValueError(
            f"step_ms = {settings.step_ms:g} on step_devices = {settings.step_devices} is less than their all-reduce "
            f"of the gradients, {included * 1e3:.3g} ms: raise the bandwidth or overlap, or give step_devices = 1"
        )
    return {
        "compute": compute,
        "average_gradients": exposed * network.seconds("all_reduce", range(devices), gradients),
        "gather_factors": settings.factor_ms * 1e-3,
        "average_factors": network.seconds("all_reduce", range(devices), factors),
    }


def _naive(loads: Sequence[LayerLoad], settings: Settings, network: Network, grid: Grid) -> Estimate:
    parts = Parts(
        **_common(loads, settings, network, grid.ranks),
        precondition=sum(_preconditioning(loads, settings)),
        spread_gradients=0.0,
        invert=sum(factor.seconds for load in loads for factor in load.factors),
        exchange_inverses=0.0,
    )
    memory = sum(load.estimate_bytes + load.inverse_bytes for load in loads)
    return Estimate(grid.ranks, NAIVE, grid.workers, parts, _per_step(parts, settings), memory)


def _per_step(parts: Parts, settings: Settings) -> Parts:
    return parts.amortised(settings.interval, settings.factor_interval)


def _estimate(
    name: str, loads: Sequence[LayerLoad], settings: Settings, network: Network, placement: Placement
) -> Estimate:
    grid = placement.grid
    seconds, gradients, inverses = ([0.0] * grid.columns for _ in range(3))
    for load, column, own in zip(loads, placement.column_of, _preconditioning(loads, settings), strict=True):
        seconds[column] += own
        gradients[column] += load.gradient_bytes
        inverses[column] += load.inverse_bytes
    inverting, inverted = ([0.0] * grid.ranks for _ in range(2))  # seconds and bytes
    for piece in placement.pieces:
        factor, blocks = loads[piece.layer].factors["ag".index(piece.side)], piece.last - piece.first
        inverting[piece.rank] += blocks * factor.block_seconds
        inverted[piece.rank] += factor.piece_bytes(blocks)
    # As in thor: directions are all-reduced, zero for layers of other columns; inverses are gathered, padded to the
    # longest.
    rows = (grid.row_ranks(row) for row in range(grid.workers))
    columns = (grid.column_ranks(column) for column in range(grid.columns))
    gathered = ((column, len(column) * max(inverted[rank] for rank in column)) for column in columns)
    parts = Parts(
        **_common(loads, settings, network, grid.ranks),
        precondition=max(seconds),
        spread_gradients=max(network.seconds("all_reduce", row, sum(gradients)) for row in rows),
        invert=max(inverting),
        exchange_inverses=max(network.seconds("all_gather", column, size) for column, size in gathered),
    )
    memory = sum(load.estimate_bytes for load in loads) + int(max(inverses))
    return Estimate(grid.ranks, name, grid.workers, parts, _per_step(parts, settings), memory)
