"""Fixtures of the tests of thor/."""

from __future__ import annotations

import time

import mindspore as ms
import numpy as np
import pytest

from thor.profile import timing


@pytest.fixture(autouse=True)
def _pynative_and_seeded():
    """Every test starts in PYNATIVE_MODE with fixed seeds, and leaves the mode as it was."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    np.random.seed(0)
    ms.set_seed(0)
    yield
    ms.set_context(mode=before)


@pytest.fixture(params=["GRAPH_MODE", "PYNATIVE_MODE"])
def mode(request):
    """Run the test in both of MindSpore's modes."""
    ms.set_context(mode=getattr(ms, request.param))
    return request.param


@pytest.fixture
def quick(monkeypatch):
    """Times are taken from one repeat, without waiting for a budget of seconds. Answers with the number of timings."""
    count = [0]

    def once(call, *_):
        count[0] += 1
        call()
        before = time.perf_counter()
        call()
        seconds = time.perf_counter() - before
        return timing.Timing(seconds, seconds, seconds, 1)

    monkeypatch.setattr(timing, "repeat", once)
    return count
