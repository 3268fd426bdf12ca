import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only

from thor import device  # noqa: E402

device.select(os.environ.get("THOR_TEST_DEVICE", "CPU"))
