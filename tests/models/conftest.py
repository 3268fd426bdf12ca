"""Fixtures of the tests of models/."""

import mindspore as ms
import pytest

from thor.runtime.modes import in_mode


@pytest.fixture(params=[ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def each_mode(request):
    """Run the test in both of MindSpore's modes, and leave the mode as it was."""
    with in_mode(request.param):
        yield
