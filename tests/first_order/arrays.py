"""Random tensors and how closely types must agree."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor

SHAPES = [(), (7,), (3, 5), (2, 3, 4), (2, 3, 3, 3), (2, 1, 2, 3, 4)]
#: Relative to the largest entry; 50 steps of float16 round 50 times.
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5, np.float16: 2e-2}


def arrays(seed, shapes=SHAPES, dtype=np.float64, scale=1.0):
    rng = np.random.default_rng(seed)
    return [np.asarray(scale * rng.standard_normal(shape)).astype(dtype) for shape in shapes]


def make_parameters(values):
    return [Parameter(Tensor(np.array(value)), name=f"w{i}") for i, value in enumerate(values)]


def tensors(values):
    return tuple(Tensor(np.array(value)) for value in values)


def assert_close(ours, theirs, dtype, factor=1.0):
    """Relative to the largest entry of the reference."""
    ours = np.asarray(ours.asnumpy() if hasattr(ours, "asnumpy") else ours)
    theirs = np.asarray(theirs)
    assert ours.dtype == theirs.dtype == dtype and ours.shape == theirs.shape
    size = max(np.abs(theirs.astype(np.float64)).max(), 1e-30)
    error = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max() / size
    assert error <= factor * TOLERANCE[dtype], f"off by {error:.3g} relative"
