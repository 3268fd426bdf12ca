"""Processes that run at once: each on cores of its own."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from scripts.common.cpu_cores import core_binder, disjoint_cores
from thor.runtime.host_threads import available_cores

ASK = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]

binds = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to a core")


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_cores_are_dealt_out_once_and_evenly(monkeypatch, processes):
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 6, 8, 9}, raising=False)
    apart = disjoint_cores(processes)
    assert [len(cores) for cores in apart] == [available_cores() // processes] * processes
    assert len(set.union(*apart)) == sum(map(len, apart)) and set.union(*apart) <= {3, 4, 6, 8, 9}


def test_more_processes_than_cores_are_bound_to_none(monkeypatch):
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert disjoint_cores(3) == []
    core_binder([])()  # and nothing is asked of the system


@binds
def test_a_process_runs_on_the_cores_of_the_thread_that_started_it():
    before = os.sched_getaffinity(0)
    apart = [{core} for core in sorted(before)[:2]]
    both = threading.Barrier(len(apart))  # else one thread could answer for both

    def ask(_):
        both.wait(20)
        return subprocess.run(ASK, capture_output=True, text=True, check=True).stdout.strip()

    with ThreadPoolExecutor(len(apart), initializer=core_binder(apart)) as pool:
        assert sorted(pool.map(ask, apart)) == sorted(str(sorted(cores)) for cores in apart)
    assert os.sched_getaffinity(0) == before
