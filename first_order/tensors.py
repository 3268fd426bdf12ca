"""Small helpers that run on the host and inside compiled graphs alike."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor


def on_host(value):
    """Whether code runs eagerly: the graph compiler knows tensors by shape and type alone, without storage.

    Checks of values belong behind it; the compiler drops what follows a False.
    """
    return not isinstance(value, Tensor) or hasattr(value, "data_ptr")


def working_type(dtype):
    """The type that arithmetic is done in: float16 tensors are computed in float32 and rounded once."""
    if dtype == ms.float64:
        return ms.float64
    return ms.float32


def scalar(value, dtype):
    """A number or a Tensor of one element as a 0-d Tensor.

    Never a bare Python number beside a float64 Tensor: MindSpore rounds those to float32.
    """
    if isinstance(value, Tensor):
        return value.reshape(()).astype(dtype)
    return Tensor(value, dtype)
