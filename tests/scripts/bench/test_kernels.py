"""The table of kernels: what is counted, and that MindSpore's profiler gives it."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from scripts.bench.kernels import KINDS, OTHER, busy, kind_of, measure


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [("BatchMatMul", "products"), ("Conv2D", "products"), ("Col2Im", "patches"), ("StridedSlice", "moves"),
     ("ApplyMomentum", "optimizer"), ("ReduceSum", OTHER)],
)  # fmt: skip
def test_the_kind_of_a_kernel(kernel, kind):
    assert kind_of(kernel) == kind


def test_what_runs_at_the_same_time_counts_once():
    assert busy([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0
    assert busy([]) == 0.0


@ms.jit
def two_products(x):
    """Two products and a sine."""
    return ops.matmul(ops.matmul(x, x), ops.sin(x))


def test_a_step_is_told_by_its_kernels():
    ms.set_context(mode=ms.GRAPH_MODE)
    result = measure(two_products, (Tensor(np.eye(200, dtype=np.float32)),), steps=3)
    assert result["kernels"] == 3.0
    assert {kernel: each["count"] for kernel, each in result["types"].items()} == {"MatMul": 2.0, "Sin": 1.0}
    assert result["kinds"]["products"] == result["types"]["MatMul"]["ms"] > 0
    assert result["kinds"][OTHER] == result["types"]["Sin"]["ms"] > 0
    parts = sum(result["kinds"].values()) - result["twice"] + result["outside"]
    assert parts == pytest.approx(result["wall"], rel=1e-3)  # the profiler rounds its times
    assert set(result["kinds"]) == {*KINDS, OTHER}
