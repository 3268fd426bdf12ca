"""scripts/train.py, and rank 1 comes to grief before a step of its own; a continued job goes well.

faulty.py WHAT STEP [train.py's arguments]; WHAT: kill, stop, raise, leave, sleep, ask (for an
end, by the file `stop`, and die), or none.
"""

import os
import signal
import sys
import time
from pathlib import Path

import scripts.train
from scripts.common.errors import run_program
from scripts.training import loop

what, step, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]


def come_to_grief() -> None:
    if what == "raise":
        raise ValueError("the sky has fallen")
    if what == "sleep":
        time.sleep(1000)
    if what == "leave":
        os._exit(0)
    if what == "ask":
        Path(Path(arguments[-1]).with_suffix(""), "stop").touch()  # start() has the run beside its configuration
    os.kill(os.getpid(), {"ask": signal.SIGKILL, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])


beat = loop.Heart.beat


def beat_and_fail(self, done, doing):
    beat(self, done, doing)
    if (
        what != "none"
        and os.environ["RANK_ID"] == "1"
        and (done, doing) == (step, "step")
        and "--resume" not in arguments
    ):
        come_to_grief()


loop.Heart.beat = beat_and_fail
run_program(lambda: scripts.train.main(arguments))
