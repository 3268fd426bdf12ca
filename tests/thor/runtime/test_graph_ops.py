"""The idioms of graph_ops.py do what they stand for, and a step holds no Transpose."""

import os
import subprocess
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from tests.thor.step.test_accelerator_path import MODULES, primitives
from thor.runtime.graph_ops import constant, constants, entries_of, swapped

TRAINING = """
import sys
import mindspore as ms
from tests.support.networks import Mixed, Mlp, batch, images, make

ms.set_context(mode=ms.GRAPH_MODE, save_graphs=1, save_graphs_path=sys.argv[1])
for net, data in ((Mlp(), batch()), (Mixed(), images())):
    optimizer, step = make(net, block_size=2, clip=1.0, interval=2, momentum=0.9, jit=True)
    for _ in range(2):
        step(*data)
"""


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "operator by operator"])
@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 4, 1), (3, 1, 4, 2), (2, 5, 1, 3), (1, 1, 1, 1)], ids=str)
def test_swapping_is_numpys_transposition_of_the_two_middle_axes(shape, compiled):
    def function(x):
        return swapped(x, *shape)

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = (ms.jit(function) if compiled else function)(Tensor(x.reshape(shape[0], -1)))
    np.testing.assert_array_equal(found.asnumpy(), x.transpose(0, 2, 1, 3))


def test_constants_and_entries():
    def function(x):
        return constant((2, 3), 0.5), constants((2, 1, 3), (1.0, 0.0, 4.0), 2), entries_of(x, 1, 2)

    half, along, entries = ms.jit(function)(Tensor(np.arange(4, dtype=np.float32)))
    np.testing.assert_array_equal(half.asnumpy(), np.full((2, 3), 0.5, np.float32))
    np.testing.assert_array_equal(along.asnumpy(), [[[1, 0, 4]]] * 2)
    np.testing.assert_array_equal(entries.asnumpy(), [1, 2])


def test_no_graph_of_a_step_holds_a_transpose(tmp_path):
    """On a CPU each holds an 8-byte index of every entry, for as long as the graph lives."""
    environment = os.environ | {"PYTHONPATH": MODULES, "MS_DEV_DUMP_IR_PASSES": "validate", "GLOG_v": "3"}
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    used = primitives(tmp_path)
    assert {"BatchMatMul", "Gather", "ApplyMomentum"} <= used  # the dump holds the whole step
    assert not {name for name in used if "ranspose" in name}
