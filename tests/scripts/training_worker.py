"""One rank of a data-parallel job: trains with each of the configurations given."""

import sys
from functools import cache
from pathlib import Path

from scripts import training
from scripts.config import load_config

settings = [load_config(Path(path)) for path in sys.argv[1:]]
training.select_device = cache(training.select_device)  # a process selects its device and joins a job once
ranks = training.join(settings[0]) if training.select_device("CPU") else None
training.join = lambda _: ranks
for own in settings:
    training.train(own, resume="auto")
