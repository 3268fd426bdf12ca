"""How many damaged files survive, as a Markdown table: python -m tests.fuzz.figures [CASES [NAME]].

CASES are of each kind of file (what is drawn gets fewer); only kinds whose name holds NAME are run.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter

os.environ.setdefault("GLOG_v", "4")  # MindSpore says on its own what the errors say too

from tests.fuzz.cases import READ, REFUSED, Failure, bench, cases_of  # noqa: E402
from tests.fuzz.targets import TARGETS  # noqa: E402

FAILED = "failed"


def main(cases: int = 2000, name: str = "") -> int:
    failures = 0
    print("| file | cases | read | refused | failed | seconds |\n|:--|--:|--:|--:|--:|--:|")
    for target in (each for each in TARGETS if name in each.name):
        found: Counter[str] = Counter()
        begin = time.perf_counter()
        with bench(target) as place:
            for seed in range(cases_of(target, cases)):
                try:
                    found[place.run(seed)] += 1
                except Failure as failure:
                    found[FAILED] += 1
                    print(failure, file=sys.stderr)
        numbers = [found.total(), *(found[each] for each in (READ, REFUSED, FAILED))]
        print(f"| {target.name} | {' | '.join(map(str, numbers))} | {time.perf_counter() - begin:.0f} |", flush=True)
        failures += found[FAILED]
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2]), *sys.argv[2:3]))
