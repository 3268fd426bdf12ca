"""Small helpers that run on the host and inside compiled graphs."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor


def on_host(value):
    """Whether the code runs on the host; in the graph compiler, tensors have a shape and a type but no storage.

    Put checks of values under ``if on_host(...)``: the compiler drops a branch whose condition is False.
    """
    return not isinstance(value, Tensor) or hasattr(value, "data_ptr")


def working_type(dtype):
    """The type of the arithmetic: float64 for float64, else float32. float16 results are rounded once at the end."""
    if dtype == ms.float64:
        return ms.float64
    return ms.float32


def scalar(value, dtype):
    """A number or a Tensor of one element as a 0-d Tensor of type ``dtype``.

    MindSpore rounds a Python number to float32, also in arithmetic with a float64 Tensor; this function avoids that.
    """
    if isinstance(value, Tensor):
        return value.reshape(()).astype(dtype)
    return Tensor(value, dtype)
