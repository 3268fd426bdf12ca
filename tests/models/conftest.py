"""Fixtures of the tests of models/."""

import mindspore as ms
import pytest


@pytest.fixture(params=[ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def each_mode(request):
    """Run the test in both of MindSpore's modes, and leave the mode as it was."""
    before = ms.get_context("mode")
    ms.set_context(mode=request.param)
    yield
    ms.set_context(mode=before)
