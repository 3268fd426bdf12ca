"""Measure a network on a device: the times of inverses and refreshes, then the losses of the splits layer by layer.

Every result enters the :class:`Profile` immediately. After an interrupt, ``measure(task, resume=profile)`` measures
only the remainder.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import mindspore as ms
import numpy as np
import scipy
from mindspore import Tensor, nn, ops

from first_order.checks import check_int, number
from thor.capture.targets import Target, find_targets, skip_patterns
from thor.curvature.damping import pi_split
from thor.curvature.method_names import EIGH
from thor.factors.blocks import BlockPlan, Cut
from thor.profile import gather, spectral, timing
from thor.profile.crossing import check_candidates, default_candidates
from thor.profile.factor_shape import FactorShape, Timing
from thor.profile.layer_plan import factor_seconds
from thor.profile.profile_file import OTHER_ENTRIES, FactorMeasure, LayerMeasure, Profile, RefreshMeasure
from thor.runtime import device
from thor.runtime.processor import processor_name

SPLITS_MEASURED = ("block", "block+mean", "block+rank")


class Progress(Protocol):
    """Receives the progress of a measurement; the command line draws bars from it."""

    def stage(self, name: str, total: float) -> None:
        """Start a stage with ``total`` units of work."""

    def advance(self, amount: float) -> None:
        """Report ``amount`` further units of the stage as done."""


class Silent:
    """A :class:`Progress` that shows nothing."""

    def stage(self, name: str, total: float) -> None: ...

    def advance(self, amount: float) -> None: ...


@dataclass(kw_only=True)
class Task:
    """The network, the data and the options of a measurement.

    Args:
        net: the network.
        forward: the loss of a batch, ``forward(*inputs)``; :func:`thor.profile.gather.loss_of` makes it.
        batches: returns a new iterator over the batches that statistics are averaged over.
        dims: candidate block sizes; None for 1, 16, 32, ... until the largest factor fits, at most 2048.
        threshold: the spectral loss below which a factor counts as kept.
        rank: number of directions of "block+rank".
        damping: damping of the measured cosines, split between A and G as in training.
        skip: regular expressions; layers with a matching name are not measured.
        memory: bytes that the profiler may hold at once.
        inverse: "lapack", "cholesky" or "newton-schulz"; None for the device's default; "eigh" measures eigenbases.
        describe: entries on the network and the data for ``Profile.settings``.
        details: False measures only the quantities of the paper's choice; refresh times are then modelled.
    """

    net: nn.Cell
    forward: Callable[..., Any]
    batches: Callable[[], Iterator[tuple[Tensor, ...]]]
    dims: Sequence[int] | None = None
    threshold: float = 0.01
    rank: int = 16
    damping: float = 0.03
    skip: Iterable[str] = ()
    memory: int = 8 * 2**30
    inverse: str | None = None
    describe: dict[str, Any] = field(default_factory=dict)
    details: bool = True


def environment(method: str) -> dict[str, Any]:
    """The device, inverse method, versions and machine of a measurement."""
    return {
        "device": device.current(),
        "inverse": method,
        "mindspore": ms.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
        "machine": processor_name(),
        "cores": os.cpu_count(),
    }


def measure(
    task: Task, *, resume: Profile | None = None, progress: Progress | None = None,
    save: Callable[[Profile], None] = lambda profile: None,
) -> Profile:  # fmt: skip
    """Measure ``task``, continuing the partial profile ``resume``; ``save`` is called after every new result."""
    progress = progress or Silent()
    skip = skip_patterns(task.skip)
    targets, left_out = find_targets(task.net, skip)
    targets = [target for target in targets if target.kind in ("dense", "conv", "conv_transpose")]
    if not targets:
        why = (
            "; ".join(f"{x.name} ({x.type}): {x.reason}" for x in left_out[:5])
            or "it has no dense layer or convolution"
        )
        raise ValueError(f"no layer to profile in {type(task.net).__name__} ({why})")
    dims = (
        default_candidates(max(max(t.a_dim, t.g_dim) for t in targets))
        if task.dims is None
        else check_candidates(task.dims)
    )
    if not 0 < task.threshold < 1:
        raise ValueError(f"threshold must lie between 0 and 1, but got {task.threshold}")
    number("damping", task.damping, 0.0, open_low=True)
    check_int("rank", task.rank, 1)
    method = EIGH if task.inverse == EIGH else device.inverse_method(task.inverse)
    settings = task.describe | {"rank": task.rank, "damping": task.damping, "skip": list(skip),
                                "details": task.details, "layers": [t.name for t in targets],
                                OTHER_ENTRIES: _other_entries(task.net, targets)}  # fmt: skip
    profile = Profile(settings, environment(method), dims)
    if resume is not None:
        resume.settings.setdefault(OTHER_ENTRIES, settings[OTHER_ENTRIES])  # files of earlier versions lack it
        _check_resumable(resume, profile, gather.shapes_of(targets))
        profile = resume
    profile.complete = False
    profile.threshold = task.threshold
    groups = gather.groups_within([t for t in targets if t.name not in {m.name for m in profile.layers}], task.memory)
    _time_calls(profile, method, progress, save)
    _time_refreshes(profile, gather.shapes_of(targets), method, task, progress, save)
    _measure_layers(profile, task, groups, progress, save)
    order = {target.name: index for index, target in enumerate(targets)}
    profile.layers.sort(key=lambda layer: order[layer.name])
    profile.complete = True
    save(profile)
    return profile


def _other_entries(net: nn.Cell, targets: Sequence[Target]) -> int:
    """Number of trainable entries outside the measured layers."""
    inside = {id(p) for target in targets for p in (target.weight, target.bias)}
    return sum(p.size for p in net.trainable_params() if id(p) not in inside)


#: The keys of ``Profile.environment`` that measured numbers depend on.
WHERE = ("device", "inverse", "mindspore", "machine")


def _check_resumable(found: Profile, wanted: Profile, shapes: Sequence[FactorShape]) -> None:
    """Raise a ValueError that names the difference if the profile to resume has other settings, device or shapes."""
    there = found.settings | {"dims": found.dims} | {key: found.environment[key] for key in WHERE}
    here = wanted.settings | {"dims": wanted.dims} | {key: wanted.environment[key] for key in WHERE}
    dims = {shape.name: (shape.dim, shape.copies) for shape in shapes}
    for factor in found.factors:
        name = f"the size of {factor.name}"
        there[name], here[name] = (factor.dim, factor.copies), dims.get(factor.name)
    for key, value in here.items():
        if there.get(key) != value:
            raise ValueError(f"the interrupted profile has {key} = {there.get(key)!r}, not {value!r}: "
                             f"give the same options, or start afresh")  # fmt: skip


def _time_calls(profile: Profile, method: str, progress: Progress, save: Callable[[Profile], None]) -> None:
    """Time the inverse of single blocks (the paper's p_n), and of batches of up to 16 MiB, per block."""
    dims = profile.dims
    progress.stage("timing inverses", 2)
    if not profile.calls:
        profile.calls = dict(zip(dims, timing.time_calls(dims, [1] * len(dims), method), strict=True))
        save(profile)
    progress.advance(1)
    if not profile.blocks:
        counts = [int(np.clip(2**22 // dim**2, 1, 256)) for dim in dims]
        for dim, count, batch in zip(dims, counts, timing.time_calls(dims, counts, method), strict=True):
            per_block = (batch.median / count, batch.low / count, batch.high / count)
            profile.blocks[dim] = Timing(*per_block, batch.repeats)
        save(profile)
    progress.advance(1)


def _time_refreshes(
    profile: Profile, shapes: Sequence[FactorShape], method: str, task: Task, progress: Progress,
    save: Callable[[Profile], None],
) -> None:  # fmt: skip
    """Time the refresh of all factors at each candidate; model the time if memory or ``details`` forbid that."""
    sizes = [timing.state_bytes(shapes, BlockPlan(block_size=dim, split="block"), method) for dim in profile.dims]
    progress.stage("timing the network's refresh", sum(sizes))
    for dim, size in zip(profile.dims, sizes, strict=True):
        if dim not in profile.refreshes:
            modelled = 3 * size > task.memory or not task.details  # state, and the temporary stacks of the inversion
            measured = _modelled_refresh(profile, shapes, dim) if modelled else _timed_refresh(shapes, dim, method)
            profile.refreshes[dim] = RefreshMeasure(measured, size)
            save(profile)
        progress.advance(size)


def _timed_refresh(shapes: Sequence[FactorShape], dim: int, method: str) -> Timing:
    return timing.repeat(timing.Refresh(shapes, BlockPlan(block_size=dim, split="block"), method), 0.5)


def _modelled_refresh(profile: Profile, shapes: Sequence[FactorShape], dim: int) -> Timing:
    """The refresh as the sum of blocks times seconds per block, with ``repeats`` 0."""
    total = sum(factor_seconds(profile, shape, dim) for shape in shapes)
    return Timing(total, total, total, 0)


def _measure_layers(
    profile: Profile, task: Task, groups: list[list[Target]], progress: Progress,
    save: Callable[[Profile], None],
) -> None:  # fmt: skip
    batches = task.describe.get("batches", 1)
    buffers = [(p, p.value().asnumpy().copy()) for p in task.net.untrainable_params()]
    modes = [(cell, bool(cell.training)) for _, cell in task.net.cells_and_names()]
    if not task.net.training:
        task.net.set_train(True)
    try:
        for number, group in enumerate(groups, 1):
            progress.stage(f"passes for layers, group {number} of {len(groups)}", batches)
            found = gather.gather(task.net, task.forward, task.batches, group, lambda: progress.advance(1))
            work = [float(gather.bytes_of(target)) for target in group]
            progress.stage(f"losses, group {number} of {len(groups)}", sum(work))
            for amount in work:
                profile.layers.append(_measure_layer(found.pop(0), profile.dims, task))
                save(profile)
                progress.advance(amount)
    finally:
        for cell, training in modes:  # set_train also sets the children, which come later
            cell.set_train(training)
        for parameter, value in buffers:  # moving averages of normalisation layers
            ops.assign(parameter, Tensor(value))


def _measure_layer(layer: gather.LayerStatistics, dims: Sequence[int], task: Task) -> LayerMeasure:
    shape_a, shape_g = layer.shapes
    norms = spectral.factor_norm(layer.a), spectral.factor_norm(layer.g)
    a = _measure_factor(shape_a, layer.kind, layer.a, layer.mean_a, norms[0], layer.positions, dims, task)
    g = _measure_factor(shape_g, layer.kind, layer.g, layer.mean_g, norms[1], 1, dims, task)
    cosine = _cosines(layer, dims, task) if task.details else {}
    return LayerMeasure(layer.name, a, g, cosine)


def _cuts(shape: FactorShape, dims: Sequence[int], split: str, rank: int) -> list[Cut]:
    return [shape.cut(BlockPlan(block_size=size, split=split, rank=rank)) for size in dims]


def _measure_factor(
    shape: FactorShape, kind: str, factor: np.ndarray, mean: np.ndarray, norm: float, positions: int,
    dims: Sequence[int], task: Task,
) -> FactorMeasure:  # fmt: skip
    plain = _cuts(shape, dims, "block", task.rank)
    loss = {"channel": [spectral.spectral_loss(factor, cut, norm) for cut in plain]}
    error: dict[str, list[float]] = {}
    if task.details:
        if positions > 1:
            order = spectral.position_major(shape.dim, positions)
            moved = np.ascontiguousarray(factor[:, order[:, None], order[None, :]])
            loss["position"] = [spectral.spectral_loss(moved, cut, norm) for cut in plain]
        for split in SPLITS_MEASURED:
            cuts = _cuts(shape, dims, split, task.rank)
            error[split] = [
                0.0 if cut.size == cut.dim else spectral.Split(factor, cut, mean).error(norm) for cut in cuts
            ]  # fmt: skip
    return FactorMeasure(shape.layer, shape.side, kind, shape.dim, shape.copies, norm, loss, error, shape.bias)


def _cosines(layer: gather.LayerStatistics, dims: Sequence[int], task: Task) -> dict[str, list[float]]:
    """cos(G_hat^-1 dW A_hat^-1, G^-1 dW A^-1) per split and candidate, each factor damped by :func:`pi_split`."""
    traces = [np.trace(f, axis1=1, axis2=2) for f in (layer.a, layer.g)]
    dampings = np.array(pi_split(task.damping, traces[0], traces[1], layer.a.shape[1], layer.g.shape[1]))
    gradient = layer.gradient.astype(np.float32)

    def direction(cut_a: Cut, cut_g: Cut) -> np.ndarray:
        left = spectral.Split(layer.g, cut_g, layer.mean_g).solve(dampings[1], gradient)
        right = spectral.Split(layer.a, cut_a, layer.mean_a).solve(dampings[0], left.transpose(0, 2, 1))
        return right.reshape(-1)

    whole_a, whole_g = (Cut(f.shape[1], f.shape[1], 1) for f in (layer.a, layer.g))
    reference = direction(whole_a, whole_g)
    cosines: dict[str, list[float]] = {}
    for split in SPLITS_MEASURED:
        values = []
        for cut_a, cut_g in zip(*(_cuts(shape, dims, split, task.rank) for shape in layer.shapes), strict=True):
            if cut_a.size == cut_a.dim and cut_g.size == cut_g.dim:
                values.append(1.0)
                continue
            found = direction(cut_a, cut_g)
            product = float(np.linalg.norm(found)) * float(np.linalg.norm(reference))
            values.append(float(found @ reference) / product if product > 0 else 1.0)
        cosines[split] = values
    return cosines
