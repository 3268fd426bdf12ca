"""Fixtures of the tests of thor/."""

from __future__ import annotations

import time

import mindspore as ms
import numpy as np
import pytest

from thor.factors import blocks
from thor.profile import timing
from thor.profile.factor_shape import Timing
from thor.runtime.modes import in_mode


@pytest.fixture(autouse=True)
def _pynative_and_seeded():
    """Every test starts in PYNATIVE_MODE with fixed seeds, and leaves the mode as it was."""
    with in_mode(ms.PYNATIVE_MODE):
        np.random.seed(0)
        ms.set_seed(0)
        yield


@pytest.fixture(params=["GRAPH_MODE", "PYNATIVE_MODE"])
def mode(request):
    """Run the test in both of MindSpore's modes."""
    ms.set_context(mode=getattr(ms, request.param))
    return request.param


@pytest.fixture(params=["in blocks", "whole"])
def inverses(request, monkeypatch):
    """Run the test with inverses of cut factors in blocks, and with those of few blocks as one matrix."""
    if request.param == "in blocks":
        monkeypatch.setattr(blocks, "WHOLE_INVERSE_OPERATIONS", -1)
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
        return Timing(seconds, seconds, seconds, 1)

    def all_once(sizes, counts, method):
        found = [once(timing._inversion(size, many, method)) for size, many in zip(sizes, counts, strict=True)]
        count[0] -= len(sizes) - 1  # sizes are timed together
        return found

    monkeypatch.setattr(timing, "repeat", once)
    monkeypatch.setattr(timing, "time_calls", all_once)
    return count
