"""The table of kernels: what is counted, and that MindSpore's profiler gives it."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from scripts.bench.kernels import KINDS, OTHER, busy, kind_of, measure, profiled
from thor.runtime import device
from thor.settings.kinds import EIGENBASIS, INVERSE


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


def more_kernels(name, precondition, phases, batch=2):
    """How many kernels more than the first-order step THOR's steps have on an accelerator's path."""
    ms.set_context(mode=ms.GRAPH_MODE)
    with device.choosing_for("GPU"):
        found = profiled(name, precondition, batch, steps=1, phases=phases)
    first_order, *steps = (each["kernels"] for each in found.values())
    return [step - first_order for step in steps]


#: Kernels of a plain and of a curvature step beyond Momentum's step, with inverses, or beyond Adam's, which is one
#: kernel for each weight.
MOST = {
    ("lenet", INVERSE): (30, 165),
    ("bert", INVERSE): (30, 670),
    ("lenet", EIGENBASIS): (145, 265),
    ("bert", EIGENBASIS): (280, 790),
}


def check_kernels(name, precondition):
    plain, curvature = more_kernels(name, precondition, ("plain", "curvature"))
    most_plain, most_curvature = MOST[name, precondition]
    assert 0 < plain <= most_plain
    assert plain < curvature <= most_curvature


def test_steps_have_few_kernels_more_on_an_accelerator():
    check_kernels("lenet", INVERSE)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precondition"), [key for key in MOST if key != ("lenet", INVERSE)])
def test_steps_of_others_have_few_kernels_more_on_an_accelerator(name, precondition):
    check_kernels(name, precondition)


@pytest.mark.slow
def test_resnet50_has_few_kernels_more_on_an_accelerator():
    (plain,) = more_kernels("resnet50", INVERSE, ("plain",))
    assert 0 < plain <= 180


def test_choosing_for_another_target_ends_with_its_block():
    before = device.spares_kernels(), device.l2_loss_is_fast()
    assert before == (False, True)
    with pytest.raises(KeyError), device.choosing_for("Ascend"):
        assert (device.spares_kernels(), device.l2_loss_is_fast(), device.current()) == (True, False, "CPU")
        raise KeyError
    assert (device.spares_kernels(), device.l2_loss_is_fast()) == before
