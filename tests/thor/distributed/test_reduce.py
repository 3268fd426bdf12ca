"""What THOR takes from the parallel context and the environment, in a process alone."""

import logging

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from thor.distributed import ranks
from thor.distributed.ranks import ranks_of_context


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


def test_what_ranks_copy_is_the_same_to_the_bit_whatever_its_type(monkeypatch):
    """A CPU's Broadcast, which takes every type for float32 or int32, is given nothing else."""
    sent = []

    def broadcast(root):
        def send(tensors):
            sent.append(tensors[0].dtype)
            return tuple(Tensor(each.asnumpy().copy()) for each in tensors)

        return send

    monkeypatch.setattr(ranks.ops, "Broadcast", broadcast)
    values = {
        "float32": np.float32([0.1, -2.0]),
        "int32": np.int32([7, -8]),
        "float16": np.float16([0.1, 65504.0, 6e-8]),
        "int64": np.int64([[1099511627777, 5]]),
        "float64": np.float64(1 / 3),
        "bool": np.array([True, False, True]),
    }
    parameters = [Parameter(Tensor(value), name=name) for name, value in values.items()]
    ranks.copy_first(parameters)
    assert set(sent) == {ms.float32, ms.int32}
    for parameter, value in zip(parameters, values.values(), strict=True):
        assert parameter.asnumpy().dtype == value.dtype and parameter.shape == value.shape
        np.testing.assert_array_equal(parameter.asnumpy(), value)
