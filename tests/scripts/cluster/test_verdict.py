"""How an attempt ends that somebody has asked to end, and that fails on the way."""

import pytest

from scripts.cluster.msrun import Job
from scripts.cluster.watch import Attempt, Limits
from tests.scripts.cluster.test_launch import FAULTY

RAISED = "Traceback (most recent call last):\n  File \"x\", line 1\nKeyError: 'weight'\n"


@pytest.mark.parametrize(
    ("status", "log", "asked", "found", "words"),
    [
        (2, "error: run: cannot be written (No space left on device)\n", True, 2, "No space left"),
        (1, RAISED, True, 1, "KeyError: 'weight'"),
        (1, RAISED, False, 1, "KeyError: 'weight'"),
        (130, "", True, 130, "ended by request"),
        (130, "", False, 130, "ended by request"),
        (3, "", False, 3, "ended by the file"),
        (3, RAISED + "going on\n", False, 3, "ended by the file"),
        (130, "error: something that was mended\n" + RAISED, True, 130, "ended by request"),
        (-15, "", True, 130, "ended by request"),
        (1, RAISED.replace("KeyError: 'weight'", "KeyboardInterrupt"), True, 130, "ended by request"),
        (1, RAISED.replace("KeyError: 'weight'", "RuntimeError: hccl timed out"), True, 130, "ended by request"),
    ],
)
def test_a_failure_is_told_though_the_job_was_asked_to_end(tmp_path, status, log, asked, found, words):
    job = Job(script=FAULTY, arguments=(), log_dir=tmp_path, devices=1, port=8118)
    attempt = Attempt(job, Limits(), lambda: int(asked))
    (tmp_path / "worker_0.log").write_text(log)
    attempt._seen.statuses[0], attempt._seen.states[0] = status, "gone"
    outcome = attempt._verdict(None, 0.0, 1.0, asked)
    assert outcome.status == found and words in outcome.message
