"""Two processes with half the batch each train as one process with all of it."""

import numpy as np
import pytest

from tests.first_order import parallel_worker
from tests.support.msrun import run_job

pytestmark = [pytest.mark.slow, pytest.mark.jobs]


def test_two_processes_train_as_one(tmp_path):
    """To a rounding: the mean of two halves' gradients is summed in another order than the whole's."""
    run_job(tmp_path, "tests/first_order/parallel_worker.py", tmp_path)
    ranks = [np.load(tmp_path / f"rank{rank}.npz") for rank in range(2)]
    for name in parallel_worker.OPTIMIZERS:
        for key, wanted in parallel_worker.train(name, 0, 1).items():
            np.testing.assert_array_equal(ranks[0][key], ranks[1][key], err_msg=key)
            np.testing.assert_allclose(ranks[0][key], wanted, rtol=2e-4, atol=1e-5, err_msg=key)
