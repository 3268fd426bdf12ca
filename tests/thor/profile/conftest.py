"""Fixtures of the profiler's tests."""

from __future__ import annotations

import time

import pytest

from thor.profile import timing


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
