import atexit
import gc
import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only

import mindspore as ms  # noqa: E402
import pytest  # noqa: E402
from mindspore import nn  # noqa: E402

from thor.runtime import device  # noqa: E402

if device.select(os.environ.get("THOR_TEST_DEVICE", "CPU")) == "GPU":
    # Theorems hold in float32, and to the bit where sums have one order: a GPU's convolutions have neither by default
    ms.set_context(deterministic="ON", gpu_config={"conv_allow_tf32": False, "matmul_allow_tf32": False})

# MindSpore's Cells take themselves off a count of a module that may be gone as the interpreter ends, and each that
# outlives it prints a traceback then: 1485 of them, after all tests had passed
atexit.register(delattr, nn.Cell, "__del__")


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_collect():
    """Spare the garbage collector what was made before a file's tests, such as TensorFlow's and torch's modules.

    MindSpore collects garbage before each compilation. With so many objects that takes a third of a test's time.
    """
    gc.collect()
    gc.freeze()
