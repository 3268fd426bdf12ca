import atexit
import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only

from mindspore import nn  # noqa: E402

from thor import device  # noqa: E402

device.select(os.environ.get("THOR_TEST_DEVICE", "CPU"))

# MindSpore's Cells take themselves off a count of a module that may be gone as the interpreter ends, and each that
# outlives it prints a traceback then: 1485 of them, after all tests had passed
atexit.register(delattr, nn.Cell, "__del__")
