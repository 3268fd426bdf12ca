"""Verdicts on a job from what was seen of it."""

import pytest

from scripts.cluster.causes import Kind, of_log, of_process, of_status
from scripts.cluster.watch import Limits, Seen, failure, hung, left_early
from scripts.run_folder.heartbeat import Beat

TRACEBACK = """step 3
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    step()
{line}

----------------------------------------------------
- C++ Call Stack: (For framework developers)
----------------------------------------------------
mindspore/ccsrc/cluster/topology/meta_server_node.cc:554 UpdateTopoState
"""
KERNEL = TRACEBACK.format(line="RuntimeError: \n----\n- Kernel error:\n----\nLaunch kernel failed: AllReduce-op2")
WAITED = TRACEBACK.format(line="RuntimeError: AllReduce: wait for rank 1 timed out")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (TRACEBACK.format(line="ValueError: bad\nvalue"), Kind.EXCEPTION, "ValueError: bad value"),
        (TRACEBACK.format(line="KeyboardInterrupt"), Kind.EXCEPTION, "KeyboardInterrupt"),
        (TRACEBACK.format(line="numpy.core._exceptions._ArrayMemoryError: 9 GiB"), Kind.MEMORY, None),
        (TRACEBACK.format(line="RuntimeError: Out of memory on device 0"), Kind.MEMORY, None),
        (WAITED, Kind.COLLECTIVE, None),
        (KERNEL, Kind.COLLECTIVE, "RuntimeError: Launch kernel failed: AllReduce-op2"),
        (TRACEBACK.format(line="RuntimeError: The state of the cluster is error"), Kind.COLLECTIVE, None),
        (TRACEBACK.format(line="E: x") + "error: batch_size = 3: bad\n", Kind.USER, "batch_size = 3: bad"),
        ("error: seed = -1: bad\n       epochs = 0: bad\n[INFO] x\n", Kind.USER, "seed = -1: bad; epochs = 0: bad"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n", Kind.MEMORY, None),
    ],
)
def test_what_a_log_says(text, kind, message):
    cause = of_log(text)
    assert cause.kind is kind and message in (None, cause.message)


def test_a_log_without_a_cause():
    assert of_log("") is None and of_log("step 1\nstep 2\n") is None


def test_what_a_status_says():
    assert of_status(-9).message.startswith("killed by SIGKILL") and of_status(-250).message == "killed by signal 250"
    assert of_status(3).message == "ended with exit status 3"
    assert of_process(-6, "std::bad_alloc").kind is Kind.MEMORY
    assert of_process(-9, WAITED).kind is Kind.SIGNAL
    assert of_process(None, "") is None


def at(step, doing="step", time=0.0):
    return Beat(step, doing, time)


def test_the_root_is_not_the_rank_that_waited():
    seen = Seen(statuses={0: 1}, states={0: "gone", 1: "gone"}, beats={0: at(4), 1: at(4)})
    logs = {0: WAITED, 1: TRACEBACK.format(line="ValueError: mine")}
    assert failure(seen, logs.get)[0] == 1
    assert failure(Seen(states={0: "alive"}), logs.get) is None


@pytest.mark.parametrize(("state", "beat"), [("stopped", at(4)), ("alive", at(4, "data"))])
def test_a_collective_fails_by_the_rank_that_is_not_there(state, beat):
    seen = Seen(statuses={0: 1}, beats={0: at(4), 1: beat})
    for rank, looks in ((0, ["gone"]), (1, [state, "gone"])):  # msrun kills it before anybody looks again
        for look in looks:
            seen.note(rank, look, 0.0)
    rank, cause = failure(seen, {0: WAITED, 1: ""}.get)
    assert rank == 1 and "rank 0 waited for it in vain" in cause.message
    assert ("SIGSTOP" in cause.message) == (state == "stopped")


def test_a_collective_that_fails_by_nobody_here():
    seen = Seen(statuses={0: 1}, states={0: "gone", 1: "alive"}, beats={0: at(4), 1: at(4)})
    rank, cause = failure(seen, {0: KERNEL, 1: ""}.get)
    assert rank == 0 and cause.message.startswith("waited in vain for another rank: RuntimeError: Launch kernel")


def test_a_rank_that_goes_on_was_not_stopped():
    seen = Seen(beats={0: at(4), 1: at(4)})
    seen.note(1, "stopped", 0.0)
    assert seen.behind() == 1
    seen.note(1, "alive", 1.0)
    assert seen.behind() is None


def test_leaving_early():
    seen = Seen(gone_since={0: 10.0, 1: 10.0}, beats={0: at(5, "done"), 1: at(4)})
    assert left_early(seen, 11.0) is None and left_early(seen, 20.0) == 1
    assert left_early(Seen(gone_since={1: 10.0}), 20.0) is None, "a program that gives no signs of life"


def test_hanging():
    limits = Limits(hang=10.0, start=100.0)
    states = {0: "alive", 1: "alive"}
    waiting = Seen(states=states, beats={0: at(4), 1: at(4, "data")})
    assert hung(waiting, 0.0, 9.0, limits) is None
    assert hung(waiting, 0.0, 11.0, limits) == (1, 11.0), "rank 0 waits for it"
    assert hung(waiting, 0.0, 11.0, Limits(hang=0.0)) is None
    starting = Seen(states=states, beats={0: at(0, "starting")})
    assert hung(starting, 0.0, 99.0, limits) is None and hung(starting, 0.0, 101.0, limits) is not None
    assert hung(starting, 0.0, 101.0, Limits(hang=0.0, start=100.0)) is not None, "0 is no limit, each for itself"
    assert hung(starting, 0.0, 1e6, Limits(hang=10.0, start=0.0)) is None
    assert hung(waiting, 0.0, 11.0, Limits(hang=10.0, start=0.0)) == (1, 11.0)
    ended = {0: at(9, "done"), 1: at(9, "done")}
    assert hung(Seen(states={0: "gone", 1: "gone"}, beats=ended), 0.0, 999.0, limits) is None
    assert hung(Seen(states={0: "gone", 1: "alive"}, beats=ended), 0.0, 9.0, limits) is None
    assert hung(Seen(states={0: "gone", 1: "alive"}, beats=ended), 0.0, 11.0, limits) == (1, 11.0), "as it ends"
