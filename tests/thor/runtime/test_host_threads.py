"""The host's work on many small matrices, in several threads."""

import os
import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from thor.curvature.eigenbasis import eigenvectors
from thor.runtime import host_threads
from thor.runtime.host_threads import available_cores, in_background, in_threads, thread_count


def blas_threads(_):
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_results_come_in_order_and_from_other_threads():
    found = in_threads(lambda x: (x * x, threading.current_thread().name), range(50))
    assert [square for square, _ in found] == [x * x for x in range(50)]
    assert threading.current_thread().name not in {name for _, name in found}


def test_blas_has_one_thread_within_and_its_own_number_again_behind():
    np.linalg.eigh(np.eye(2))  # BLAS is loaded
    before = blas_threads(None)
    assert before and in_threads(blas_threads, range(4)) == [{1}] * 4
    assert blas_threads(None) == before


def test_blas_has_one_thread_in_each_of_two_calls_at_once_and_its_own_number_behind_both():
    """The second begins within the first and ends behind it."""
    np.linalg.eigh(np.eye(2))
    before, begun = blas_threads(None), threading.Event()

    def first(_):
        begun.set()
        time.sleep(0.2)
        return blas_threads(None)

    def second(_):
        time.sleep(0.4)
        return blas_threads(None)

    one = in_background(lambda: in_threads(first, [0]))
    assert begun.wait(60)
    other = in_background(lambda: in_threads(second, [0]))
    assert (one(), other(), blas_threads(None)) == ([{1}], [{1}], before)


def test_an_error_comes_through():
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda x: 1 / x, [2, 1, 0])


def test_no_items_give_no_results():
    assert in_threads(len, []) == []


@pytest.mark.parametrize(
    ("asked", "count"), [("1", 1), ("100000", None), ("", None), ("0", None), ("many", None), ("2,1", None)]
)
def test_the_environment_may_ask_for_fewer_threads(asked, count, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert thread_count() == (available_cores() if count is None else count)


def test_without_threadpoolctl_the_work_is_done_here(monkeypatch):
    monkeypatch.setattr(host_threads, "_controller", lambda: None)
    assert in_threads(lambda x: (x, threading.get_ident()), [1, 2]) == [(x, threading.get_ident()) for x in (1, 2)]


def test_eigenvectors_do_not_depend_on_the_number_of_threads(monkeypatch):
    """A renewal repeats bit for bit on another number of cores."""
    x = np.random.default_rng(0).normal(size=(8, 40, 90)).astype(np.float32)
    blocks = [each[None] @ each.T[None] for each in x]
    found = []
    for cores in ("1", str(os.cpu_count())):
        monkeypatch.setenv("OMP_NUM_THREADS", cores)
        found.append(in_threads(eigenvectors, blocks))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_work_in_the_background_goes_on_meanwhile_and_tells_its_result_or_its_error():
    go_on, begun = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert go_on.wait(60)
        return threading.current_thread()

    result = in_background(work)
    assert begun.wait(60), "it has begun before anybody asks for its result"
    go_on.set()
    assert result() is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 / 0)()
