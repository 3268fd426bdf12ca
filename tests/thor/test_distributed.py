"""What THOR takes from the parallel context and the environment, in a process alone."""

import logging

import pytest

from thor.distributed import ranks_of_context


@pytest.mark.parametrize(
    ("role", "count", "warned"),
    [("MS_WORKER", "4", True), ("MS_WORKER", "1", False), ("MS_SCHED", "4", False), (None, "4", False),
     ("MS_WORKER", "many", False), ("MS_WORKER", None, False)],
)  # fmt: skip
def test_workers_that_do_not_train_together_are_warned_of(role, count, warned, monkeypatch, caplog):
    for name, value in (("MS_ROLE", role), ("MS_WORKER_NUM", count)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, "thor"):
        assert ranks_of_context(None) is None
    said = [record.getMessage() for record in caplog.records]
    assert bool(said) == warned
    assert all("one of 4 workers" in line and "'stand_alone'" in line and "init()" in line for line in said)
