"""One rank of a data-parallel job: trains with each of the configurations given."""

import sys
from functools import cache
from pathlib import Path

from scripts.settings.yaml_config import load_config
from scripts.training import loop

settings = [load_config(Path(path)) for path in sys.argv[1:]]
loop.select_device = cache(loop.select_device)  # a process selects its device and joins a job once
ranks = loop.join(settings[0]) if loop.select_device("CPU") else None
loop.join = lambda _: ranks
for own in settings:
    loop.train(own, resume="auto")
