"""A profile: the measurements of one network on one device, kept in a versioned JSON file.

Only measured numbers are read back. The curves, their crossing and the choice are computed from them, so that the
threshold can be changed without measuring again.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from first_order.checks import check_int
from thor.curvature.method_names import EIGENBASIS, EIGH, INVERSE
from thor.factors.blocks import ORDERS, SPLITS, BlockPlan
from thor.profile.crossing import Crossing, choose, kept_shares, performances
from thor.profile.factor_shape import FactorShape, Timing, largest_at_launch_floor, shapes_of_layer
from thor.runtime.json_files import parse

FORMAT, VERSION = "thor-profile", 1
#: Key of ``Profile.settings``: number of trainable entries outside the measured layers.
OTHER_ENTRIES = "other_entries"
#: Required keys of ``Profile.environment``.
ENVIRONMENT = ("device", "inverse", "mindspore", "machine", "cores")


@dataclass
class FactorMeasure:
    """One factor: its spectral norm and, per candidate, the paper's loss and the error of each split (spectral.py)."""

    layer: str
    side: str
    kind: str
    dim: int
    copies: int
    norm: float
    loss: dict[str, list[float]]  # by order; "position" only for convolutions with several kernel positions
    error: dict[str, list[float]]  # by split
    bias: bool = False  # whether the last row belongs to the bias

    @property
    def name(self) -> str:
        """The prefix of the names of the factor's Parameters."""
        return f"{self.layer}.{self.side}"

    def loss_in(self, order: str) -> list[float]:
        """The paper's loss per candidate. A factor without kernel positions has the same loss in every order."""
        return self.loss.get(order, self.loss["channel"])


@dataclass
class LayerMeasure:
    """One layer: its two factors and, per split and candidate, the cosine of its preconditioned gradient.

    The cosine is to the gradient preconditioned with the unsplit factors.
    """

    name: str
    a: FactorMeasure
    g: FactorMeasure
    cosine: dict[str, list[float]]

    @property
    def shapes(self) -> tuple[FactorShape, FactorShape]:
        """The shapes of A and G."""
        return shapes_of_layer(self.name, self.a.dim, self.g.dim, self.a.copies, self.a.bias)


@dataclass
class RefreshMeasure:
    """The refresh of all layers at one candidate: seconds, and bytes of curvature state."""

    timing: Timing
    bytes: int


@dataclass
class Profile:
    """Measurements of one network on one device.

    Lists over candidates have the order of ``dims``. Layers, calls, blocks and refreshes are added as they are
    measured; ``complete`` is True once all are present.
    """

    settings: dict[str, Any]  # the request: network, input, batches, seed, damping, rank, skip ...
    environment: dict[str, Any]  # device, inverse method ("eigh": eigenbases), versions, machine
    dims: list[int]
    threshold: float = 0.01
    calls: dict[int, Timing] = field(default_factory=dict)  # of one block of size dim: the paper's p_n
    blocks: dict[int, Timing] = field(default_factory=dict)  # of a batch of blocks, per block
    refreshes: dict[int, RefreshMeasure] = field(default_factory=dict)
    layers: list[LayerMeasure] = field(default_factory=list)
    complete: bool = False

    # -- computed from the measurements ----------------------------------------------------------------------------

    @property
    def factors(self) -> list[FactorMeasure]:
        """A and G of every layer."""
        return [factor for layer in self.layers for factor in (layer.a, layer.g)]

    @property
    def of(self) -> str:
        """What the times are of: "inverse" or "eigenbasis"."""
        return EIGENBASIS if self.environment["inverse"] == EIGH else INVERSE

    def kept(self, order: str = "channel") -> list[float]:
        """Share of the factors whose loss is below the threshold, per candidate.

        A factor of zeros, of a layer that the loss does not depend on, loses nothing whatever its blocks are. It counts
        only if there is no other.
        """
        factors = [factor for factor in self.factors if factor.norm > 0] or self.factors
        return kept_shares([factor.loss_in(order) for factor in factors], self.threshold)

    def performance(self) -> list[float]:
        """p_1 / p_n per candidate."""
        return performances([self.calls[dim].median for dim in self.dims])

    def crossing(self, order: str = "channel") -> Crossing:
        """The crossing of the paper's two curves, with the chosen block size."""
        return choose(self.dims, self.kept(order), self.performance())

    def largest_at_launch_floor(self) -> int | None:
        """The largest candidate whose time is about the launch floor; None if there is none (see factor_shape.py)."""
        return largest_at_launch_floor(self.dims, [self.calls[dim].median for dim in self.dims])

    def plan(self, split: str = "block+mean", rank: int = 16, order: str = "channel") -> BlockPlan:
        """The paper's choice as a plan for ``THOR(block_size=...)``."""
        return BlockPlan(block_size=self.crossing(order).chosen, split=split, rank=rank, order=order)

    # -- the file ------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The content of the JSON file."""
        raw = asdict(self)
        head = {"format": FORMAT, "version": VERSION}
        if self.complete:
            raw["choice"] = asdict(self.crossing())  # for other programs; from_dict ignores it
        return head | raw

    def save(self, path: str | Path) -> None:
        """Write the file atomically: a reader never sees a partial file, and an interrupt leaves the earlier one."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self.to_dict(), file, indent=1, allow_nan=False)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path, *, partial: bool = False) -> Profile:
        """Read a profile.

        Raises:
            ValueError: if the file cannot be read or is invalid, or is incomplete and ``partial`` is False.
        """
        path = Path(path)
        try:
            data = parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(
                f"{path}: no such profile; measure one with: thor profile MODULE:CALLABLE --out {path}"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: cannot be read: {error}") from error
        except ValueError as error:  # also of a number with thousands of digits
            raise ValueError(f"{path}: corrupt or truncated JSON ({error}); measure it again") from error
        profile = cls.from_dict(data, str(path))
        if not profile.complete and not partial:
            raise ValueError(f"{path}: the measurement was interrupted; run the same thor profile command to finish it")
        return profile

    @classmethod
    def from_dict(cls, data: Any, source: str = "profile") -> Profile:
        """Build and check a profile from the content of a file; ``source`` names it in errors."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"{source}: not a profile of thor (no format = {FORMAT!r})")
        version = data.get("version")
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"{source}: version must be a positive integer, but is {version!r}")
        if version > VERSION:
            raise ValueError(
                f"{source}: version {version} is newer than this thor's {VERSION}; upgrade, or measure again"
            )
        try:
            profile = cls(
                settings=dict(data["settings"]), environment=dict(data["environment"]),
                dims=[int(dim) for dim in data["dims"]], threshold=float(data["threshold"]),
                calls=_timings(data["calls"]), blocks=_timings(data["blocks"]),
                refreshes={
                    int(dim): RefreshMeasure(_timing(value["timing"]), int(value["bytes"]))
                    for dim, value in data["refreshes"].items()
                },
                layers=[_layer(value) for value in data["layers"]], complete=bool(data["complete"]),
            )  # fmt: skip
            profile._check()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"{source}: a part is missing or wrong: {type(error).__name__}: {error}") from error
        return profile

    def _check(self) -> None:
        if (
            len(self.dims) < 2
            or self.dims[0] < 1
            or any(a >= b for a, b in zip(self.dims, self.dims[1:], strict=False))
        ):
            raise ValueError(f"dims must be at least two positive integers that ascend, but are {self.dims}")
        unknown = [key for key in ENVIRONMENT if key not in self.environment]
        if unknown:
            raise ValueError(f"environment lacks {', '.join(unknown)}")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, but is {self.threshold}")
        for layer in self.layers:
            for factor in (layer.a, layer.g):
                self._check_curves(f"{factor.name}: loss", factor.loss, ["channel"])
                self._check_curves(f"{factor.name}: error", factor.error, self._splits())
            self._check_curves(f"{layer.name}: cosine", layer.cosine, self._splits())
        if self.complete:
            for name in ("calls", "blocks", "refreshes"):
                missing = [dim for dim in self.dims if dim not in getattr(self, name)]
                if missing:
                    raise ValueError(f"{name} lacks block sizes {missing}")
            if not self.layers:
                raise ValueError("there are no layers")

    def _splits(self) -> Sequence[str]:
        """The splits whose curves every layer must have."""
        return SPLITS if self.settings.get("details") else ()

    def _check_curves(self, name: str, curves: Mapping[str, Sequence[float]], needed: Sequence[str]) -> None:
        missing = [key for key in needed if key not in curves]
        if missing:
            raise ValueError(f"{name} lacks {missing[0]!r}")
        for key, curve in curves.items():
            if len(curve) != len(self.dims):
                raise ValueError(f"{name} {key!r} has {len(curve)} of {len(self.dims)} values")
            if not all(_is_number(value) for value in curve):
                raise ValueError(f"{name} {key!r} must hold finite numbers, but is {curve}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _timing(value: Mapping[str, Any]) -> Timing:
    timing = Timing(**value)
    if not all(_is_number(seconds) and seconds > 0 for seconds in (timing.median, timing.low, timing.high)):
        raise ValueError(f"times must be positive numbers, but got {timing}")
    return timing


def _timings(data: Mapping[str, Any]) -> dict[int, Timing]:
    return {int(dim): _timing(value) for dim, value in data.items()}


def _layer(data: Mapping[str, Any]) -> LayerMeasure:
    known = {f.name for f in fields(FactorMeasure)}
    factors: list[FactorMeasure] = []
    for side in ("a", "g"):
        factor = FactorMeasure(**{key: value for key, value in data[side].items() if key in known})
        for name in ("dim", "copies"):
            check_int(f"{name} of factor {factor.name}", getattr(factor, name), 1)
        if not _is_number(factor.norm) or factor.norm < 0:
            raise ValueError(
                f"norm of factor {factor.name} must be a finite number of at least 0, but is {factor.norm!r}"
            )
        if not set(factor.loss) <= set(ORDERS) or not set(factor.error) <= set(SPLITS):
            raise ValueError(f"unknown order or split in {factor.name}")
        factors.append(factor)
    a, g = factors
    return LayerMeasure(data["name"], a, g, dict(data["cosine"]))
