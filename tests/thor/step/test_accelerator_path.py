"""The accelerators' path, on a CPU: it trains, and uses nothing that MindSpore does not document for the device.

Every graph that training compiles is dumped as MindSpore's frontend leaves it, before the backend of a target has
changed anything; each primitive in it is then looked up in MindSpore's own documentation ("Supported Platforms").
"""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import ops

from tests.support.networks import Mlp, batch, make, values
from tests.support.paths import ROOT

MODULES = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

TRAINING = """
import json, sys
import mindspore as ms
import thor
from thor import device
from thor.factors import blocks
from tests.support.networks import Mixed, Mlp, batch, images, make
from tests.thor.capture import test_pair_capture as pairs

method, target, folder = sys.argv[1:]
ms.set_context(mode=ms.GRAPH_MODE, save_graphs=1, save_graphs_path=folder)
choosing = device.choosing_for(target)
choosing.__enter__()  # to the end of this process
settings = {"inverse": method, "momentum": 0.9, "jit": True}
usual, blocks.WHOLE_INVERSE_OPERATIONS = blocks.WHOLE_INVERSE_OPERATIONS, -1  # two networks with inverses in blocks
convolutional, step = make(Mixed(), lr=0.01, block_size=6, clip=1.0, interval=2, weight_decay=1e-4, **settings)
losses = [float(step(*images()).asnumpy()) for _ in range(8)]
dense, step = make(
    Mlp(), block_size=2, split="block+rank", rank=2, accumulate=2, loss_scale=thor.DynamicLossScale(initial=8.0),
    weight_decay=1e-4, weight_decay_mode="decoupled", factor_decay=0.9, interval=2, **settings,
)
for k in range(6):
    step(*batch(seed=k))
blocks.WHOLE_INVERSE_OPERATIONS = usual
others = {"clip_each": 1.0, "factor_share": 0.5, "norms": True, "loss_fn": pairs.per_example, **settings}
cut = {"block_size": 2, "split": "block+rank", "rank": 1}
rank, position = thor.BlockPlan(**cut), thor.BlockPlan(**cut, order="position")
for net, data, plan in (
    (pairs.Words(), pairs.words(), 2), (pairs.Tied(), pairs.words(outputs=pairs.VOCABULARY), rank),
    (pairs.Images(), pairs.pixels(), position),
):
    optimizer, step = make(net, block_size=plan, **others)
    for _ in range(2):
        step(*data)
    assert all(record.refreshes == 2 for record in optimizer.layers)
in_bases, step = make(Mlp((5, 5, 5, 3)), damping=None, momentum=0.9, block_size=3, jit=True)
for k in range(3):
    step(*batch(seed=k))
assert all(record.refreshes == 3 for record in in_bases.layers)
refreshes = [record.refreshes for optimizer in (convolutional, dense) for record in optimizer.layers]
print(json.dumps({"losses": losses, "refreshes": refreshes}))
"""

#: Primitives without documentation of their own: the documented function that they carry out.
STANDS_FOR = {
    # overloads of one function, by the types of its arguments
    "MatMulExt": "matmul",
    "Muls": "mul",
    "Divs": "div",
    "LessScalar": "less",
    "SubScalar": "sub",
    # gradients, which MindSpore makes from the function itself
    "ReluGrad": "relu",
    "TanhGrad": "tanh",
    "BiasAddGrad": "bias_add",
    "BatchNormGrad": "BatchNorm",
    "LayerNormGrad": "LayerNorm",
    "Conv2DBackpropFilter": "Conv2D",
    "Conv2DBackpropInput": "Conv2D",
}
#: What a graph is made of: no kernel of any device carries these out.
STRUCTURE = {
    "UpdateState", "Load", "MakeTuple", "TupleGetItem", "Return", "Switch", "Partial", "ScalarToTensor",
}  # fmt: skip


def documented(name):
    """The platforms in the docstring of a primitive or function of mindspore.ops; None where there is none."""
    for module in (ops, importlib.import_module("mindspore.ops.auto_generate")):
        text = inspect.getdoc(getattr(module, name, None)) or ""
        found = re.search(r"Supported Platforms:\s*\n\s*(.+)", text)
        if found and "``" in found[1]:
            return set(re.findall(r"``(\w+)``", found[1]))
        refers = re.search(r"Refer to :func:`mindspore\.ops\.(\w+)`", text)
        if refers:
            return documented(refers[1])
    return None


def platforms(name):
    """The platforms of a primitive, or an error that says what to look up."""
    found = documented(name) or documented(STANDS_FOR.get(name, ""))
    assert found, f"primitive {name} has no documented platforms: look it up, then add it to STANDS_FOR"
    return found


def primitives(folder):
    """Every primitive in the graphs dumped into ``folder``."""
    found = set()
    for path in Path(folder).glob("**/*validate*.ir"):
        found |= set(re.findall(r"^  %\w+\([^)]*\) = (?:PrimFunc_)?(\w+)\(", path.read_text(), re.MULTILINE))
    return found - STRUCTURE


def compiled(method, target, folder):
    """Train in a process of its own that dumps its graphs: (what it printed, primitives)."""
    environment = os.environ | {
        "PYTHONPATH": MODULES, "GLOG_v": "3",
        "MS_DEV_DUMP_IR_PASSES": "validate", "THOR_CONVOLUTION": "native",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, method, target, str(folder)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), primitives(folder)


@pytest.mark.parametrize(("method", "device"), [("newton-schulz", "Ascend"), ("cholesky", "GPU")])
def test_the_path_trains_with_primitives_documented_for_its_device(method, device, tmp_path):
    report, used = compiled(method, device, tmp_path)
    assert report["losses"][-1] < 0.5 * report["losses"][0]
    assert report["refreshes"] == [4, 4, 4, 2, 2]
    assert {"BatchMatMul", "Conv2D", "ApplyMomentum", "IsFinite"} <= used  # the dump holds the whole step
    assert {"Split", "Sqrt"} <= used  # layers of one form are stacked; steps in eigenbases are Adam's
    assert "ReduceSum" in used and "L2Loss" not in used  # which a GPU takes half a step for (finite_check.py)
    assert ("Cholesky" in used) == (method == "cholesky")
    assert "Eye" not in used  # on a GPU it is wrong now and then (inverse.identity_of)
    missing = {name: sorted(platforms(name)) for name in used if device not in platforms(name)}
    assert not missing


def test_the_check_itself_can_fail():
    assert platforms("Cholesky") == {"GPU", "CPU"}
    assert platforms("Mul") == {"Ascend", "GPU", "CPU"}  # by reference to mindspore.ops.mul
    with pytest.raises(AssertionError, match="primitive NoSuchThing has no documented platforms"):
        platforms("NoSuchThing")
    assert not [name for name in STANDS_FOR if documented(name)]


@pytest.mark.parametrize("method", ["cholesky", "newton-schulz"])
def test_the_devices_inverses_move_the_weights_as_the_hosts_do(method):
    nets = Mlp(), Mlp()
    for net, inverse in zip(nets, ("lapack", method), strict=True):
        _, step = make(net, inverse=inverse, block_size=3, momentum=0.9)
        for seed in range(2):
            step(*batch(seed=seed))
    for name, value in values(nets[0]).items():
        np.testing.assert_allclose(values(nets[1])[name], value, rtol=2e-3, atol=2e-3 * np.abs(value).max())
