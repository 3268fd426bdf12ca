import atexit
import gc
import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only

import mindspore as ms  # noqa: E402
import pytest  # noqa: E402
from mindspore import nn  # noqa: E402

from thor.runtime import device  # noqa: E402

if device.select(os.environ.get("THOR_TEST_DEVICE", "CPU")) == "GPU":
    # Tests need true float32 and a fixed order of sums; a GPU has neither by default
    ms.set_context(deterministic="ON", gpu_config={"conv_allow_tf32": False, "matmul_allow_tf32": False})

# nn.Cell.__del__ uses a count of its module, which may be gone when the interpreter ends. Each Cell that is still alive
# then would print a traceback.
atexit.register(delattr, nn.Cell, "__del__")


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_collect():
    """Spare the garbage collector what was made before a file's tests, such as TensorFlow's and torch's modules.

    MindSpore collects garbage before each compilation. With so many objects that takes a third of a test's time.
    """
    gc.collect()
    gc.freeze()
