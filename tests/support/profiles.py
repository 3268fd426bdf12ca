"""A profile made of plain numbers, for the tests of what follows from it."""

from __future__ import annotations

from thor.factors.blocks import SPLITS, BlockPlan
from thor.profile.factor_shape import Timing
from thor.profile.profile_file import FactorMeasure, LayerMeasure, Profile, RefreshMeasure
from thor.profile.timing import state_bytes

DIMS = [1, 4, 16, 64]


def timing(seconds: float, repeats: int = 9) -> Timing:
    """A median with a spread of a tenth."""
    return Timing(seconds, 0.95 * seconds, 1.05 * seconds, repeats)


def factor(
    layer: str, side: str, dim: int, loss, *, kind="dense", copies=1, position=None, bias=False
) -> FactorMeasure:
    """One factor with the losses given, and errors a tenth of them, less with more kept beside the blocks."""
    losses = {"channel": list(loss)} | ({} if position is None else {"position": list(position)})
    error = {split: [value / 10**i for value in loss] for i, split in enumerate(SPLITS)}
    return FactorMeasure(layer, side, kind, dim, copies, 2.0, losses, error, bias)


def profile(*, dims=DIMS, call=lambda n: 1e-4 + 1e-8 * n**3, block=lambda n: 1e-6 + 1e-9 * n**3, layers=None,
            complete=True, **settings) -> Profile:  # fmt: skip
    """A complete profile: two dense layers and a convolution whose order matters."""
    if layers is None:
        layers = [
            (factor("first", "a", 60, [0.9, 0.5, 0.2, 0.0]), factor("first", "g", 20, [0.8, 0.005, 0.001, 0.0])),
            (factor("conv", "a", 37, [0.7, 0.4, 0.02, 0.0], kind="conv", copies=2, position=[0.7, 0.3, 0.008, 0.0],
                    bias=True),
             factor("conv", "g", 8, [0.6, 0.3, 0.0, 0.0], kind="conv", copies=2)),
            (factor("last", "a", 21, [0.004, 0.003, 0.002, 0.0], bias=True),
             factor("last", "g", 3, [0.5, 0.0, 0.0, 0.0])),
        ]  # fmt: skip
    cosine = {split: [1 - f / (i + 1) for f in (0.4, 0.2, 0.1, 0.0)][: len(dims)] for i, split in enumerate(SPLITS)}
    layers = [LayerMeasure(a.layer, a, g, cosine) for a, g in layers]
    shapes = [shape for layer in layers for shape in layer.shapes]
    about = {
        "network": "tests.support.networks:Tiny",
        "source": "fashion-mnist",
        "batches": 2,
        "seed": 0,
        "details": True,
        "other_entries": 0,
    }
    where = {"device": "CPU", "inverse": "lapack", "mindspore": "2.10.0", "machine": "A Processor", "cores": 2}
    return Profile(
        settings=about | settings, environment=where, dims=list(dims),
        calls={n: timing(call(n)) for n in dims}, blocks={n: timing(block(n)) for n in dims},
        refreshes={
            n: RefreshMeasure(timing(0.01), state_bytes(shapes, BlockPlan(block_size=n, split="block"), "lapack"))
            for n in dims
        },
        layers=layers, complete=complete,
    )  # fmt: skip
