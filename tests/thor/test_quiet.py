"""A training prints nothing that nobody asked for, at the log level that MindSpore has by itself."""

import os
import subprocess
import sys

import pytest

from tests.thor.step.test_accelerator_path import MODULES

TRAINING = """
import sys
import mindspore as ms
import thor
from tests.support.networks import Mixed, images, make

ms.set_context(mode=getattr(ms, sys.argv[1]))
rules = {"refresh": thor.TraceRule(update=0.5, stop=0.4), "loss_scale": thor.DynamicLossScale(initial=8.0, window=2)}
optimizer, step = make(Mixed(), momentum=0.9, interval=2, block_size=6, jit=True, **rules)
for _ in range(8):
    step(*images())
assert optimizer.step == 8
"""
FIRST_ORDER = """
import sys
import mindspore as ms
import first_order
from tests.support.networks import Mlp, batch, squared_error
from mindspore import Tensor

ms.set_context(mode=getattr(ms, sys.argv[1]))
net = Mlp()
def forward(x, y):
    return squared_error(net(x), y)
x, y = (Tensor(each) for each in batch())
options = {} if sys.argv[2] == "Adafactor" else {"learning_rate": 0.1}
optimizer = getattr(first_order, sys.argv[2])(net.trainable_params(), **options)
differentiate = ms.value_and_grad(forward, None, optimizer.parameters)
for _ in range(3):
    optimizer(differentiate(x, y)[1])
"""


@pytest.mark.parametrize(
    ("optimizer", "mode"),
    [
        ("THOR", "GRAPH_MODE"),
        ("THOR", "PYNATIVE_MODE"),
        ("Adam", "GRAPH_MODE"),
        ("Momentum", "GRAPH_MODE"),
        ("Adafactor", "PYNATIVE_MODE"),
        ("Muon", "GRAPH_MODE"),
        ("SOAP", "GRAPH_MODE"),
    ],
)
def test_a_training_warns_of_nothing(optimizer, mode, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "GLOG_v"} | {"PYTHONPATH": MODULES}
    program = tmp_path / "program.py"  # MindSpore compiles no function whose source is in no file
    program.write_text(TRAINING if optimizer == "THOR" else FIRST_ORDER, encoding="utf-8")
    command = [sys.executable, str(program), mode, optimizer]
    job = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert job.returncode == 0, job.stderr[-3000:]
    assert "warning" not in job.stderr.lower(), job.stderr
