"""THOR on one, two and four processes: the same weights, decisions and state, in each way of sharing the work."""

import mindspore as ms
import numpy as np
import pytest

import thor
from tests.support.msrun import run_job, starts_processes
from tests.support.networks import Mlp
from tests.thor.distributed import parallel_worker

TWO, FOUR = parallel_worker.OF_RANKS[2], parallel_worker.OF_RANKS[4]
# float32 sums in another order, through 30 steps
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(scope="module")
def alone():
    """Each case on one process."""
    found = {}

    def train(name):
        if name not in found:
            before = ms.get_context("mode")
            found[name] = parallel_worker.train(name, 0, 1)
            ms.set_context(mode=before)
        return found[name]

    return train


def job(folder, ranks):
    run_job(folder, "tests/thor/distributed/parallel_worker.py", folder, ranks=ranks, timeout=500)
    return folder, [dict(np.load(folder / f"rank{rank}.npz")) for rank in range(ranks)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return job(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return job(tmp_path_factory.mktemp("four"), 4)


def part(found, name, kind):
    start = f"{name}/{kind}/"
    return {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)}


def check(name, ranks, alone):
    optimizer, losses, weights, _ = alone(name)
    decisions = parallel_worker.decisions(optimizer).tolist()
    assert any("stop" in each for each in decisions) and any("keep" in each for each in decisions)
    for rank in ranks:
        assert rank[f"{name}/decisions"].tolist() == decisions
        np.testing.assert_allclose(rank[f"{name}/losses"], losses, rtol=1e-4)
        for key, value in part(rank, name, "weights").items():
            np.testing.assert_allclose(value, weights[key], err_msg=key, **CLOSE)
            np.testing.assert_array_equal(value, ranks[0][f"{name}/weights/{key}"], err_msg=key)
    own = {p.name: p.asnumpy() for p in optimizer.get_parameters()}
    for rank in ranks:  # inverses that lie on other ranks are brought together
        state = part(rank, name, "state")
        assert state.keys() == own.keys()
        for key, value in state.items():
            np.testing.assert_array_equal(value, ranks[0][f"{name}/state/{key}"], err_msg=key)
            if key.endswith((".basis", "_moment")):  # the sign of an eigenvector is rounding's
                continue
            scale = max(1e-3, np.abs(own[key].astype(np.float64)).max())
            np.testing.assert_allclose(value, own[key], rtol=1e-3, atol=1e-3 * scale, err_msg=key)


@starts_processes
@pytest.mark.parametrize("name", [name for name in TWO if name != "accumulated"])
def test_two_processes_train_as_one(name, two, alone):
    check(name, two[1], alone)


@starts_processes
@pytest.mark.parametrize("name", FOUR)
def test_four_processes_train_as_one(name, four, alone):
    check(name, four[1], alone)


@starts_processes
def test_accumulated_micro_batches_are_averaged_over_the_ranks_once_a_step(two, alone):
    """Equal weights for every example, though micro-batches and shares of ranks have different sizes."""
    weights = alone("accumulated")[2]
    for rank in two[1]:
        for key, value in part(rank, "accumulated", "weights").items():
            np.testing.assert_allclose(value, weights[key], err_msg=key, **CLOSE)


@starts_processes
def test_one_rank_a_layer_holds_less(two, four, alone):
    """With "one", all ranks together hold each inverse once; what every rank has are the estimates."""
    whole = alone("one, pynative")[0]
    layers = whole.captured
    cache = sum(p.nbytes for y in layers for f in (y.a, y.g) for p in f.cache)
    everywhere = whole.memory()["total"] - cache
    for _, ranks in (two, four):
        held = [int(rank["one, pynative/bytes"]) - everywhere for rank in ranks]
        stand_ins = sum(4 for y in layers for f in (y.a, y.g) for _ in f.cache) * (len(ranks) - 1)
        assert sum(held) == cache + stand_ins
        assert max(held) < cache


@starts_processes
def test_bytes_of_messages(two, alone):
    """Gradients always; one rank a layer: directions too; a refresh sends flags, and inverses to who holds them."""
    for rank in two[1]:
        for name, often in (("naive", 1), ("all", 1), ("one", 2), ("one, pynative", 2)):
            weights = sum(value.size for value in part(rank, name, "weights").values())
            plain, curvature, refresh = rank[f"{name}/sent"].tolist()
            assert plain == 4 * (often * weights + 2)  # and loss and number of examples
            assert curvature > plain
            traces = alone(name)[0].own_state.traces.nbytes
            flags = 4 * (2 * 4 + 2 + 1 + 4)  # two layers: each factor's damping and failure, seconds, failures again
            assert refresh > traces + flags if name == "all" else refresh == traces + flags * (name != "naive")
    assert alone("all")[3] == {"refresh": 0}


@starts_processes
@pytest.mark.parametrize("ranks", ["two", "four"])
def test_a_checkpoint_of_several_ranks_goes_on_on_one(ranks, request, alone):
    """A state of any number of ranks is a whole one: it loads into a plain optimizer, bit for bit."""
    folder, found = request.getfixturevalue(ranks)
    optimizer = parallel_worker.train("one, pynative", 0, 1, steps=1)[0]
    optimizer.load(ms.load_checkpoint(str(folder / "one, pynative.ckpt")))
    for parameter in optimizer.get_parameters():
        np.testing.assert_array_equal(parameter.asnumpy(), found[0][f"one, pynative/state/{parameter.name}"])
    assert optimizer.step == parallel_worker.STEPS


def test_a_state_of_one_process_saves_and_loads(tmp_path, alone):
    optimizer = alone("one, pynative")[0]
    ms.save_checkpoint(optimizer.state(), str(tmp_path / "state.ckpt"))
    other = parallel_worker.train("one, pynative", 0, 1, steps=1)[0]
    other.load(ms.load_checkpoint(str(tmp_path / "state.ckpt")))
    for one, two in zip(optimizer.get_parameters(), other.get_parameters(), strict=True):
        np.testing.assert_array_equal(one.asnumpy(), two.asnumpy())
    stored = ms.load_checkpoint(str(tmp_path / "state.ckpt"))
    del stored["thor.layers.0.a.inverse"]
    stored["thor.step"].set_data(ms.Tensor([77], ms.int32))
    with pytest.raises(ValueError, match="lacks 1 of the optimizer's Parameters, thor.layers.0.a.inverse"):
        other.load(stored)
    assert other.step == optimizer.step, "what is refused changes nothing"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grad_worker_fraction": 1.5}, ("grad_worker_fraction", "1.5")),
        ({"per": "row"}, ("per", "'row'", "layer, factor, block")),
        ({"fusion_mib": 0}, ("fusion_mib", "greater than 0")),
        ({"shared": False, "grad_worker_fraction": 0.5}, ("grad_worker_fraction", "shared=False", "0.5")),
    ],
)
def test_wrong_ways_of_sharing_are_refused(options, words):
    with pytest.raises(ValueError) as caught:
        thor.Sharing(**options)
    assert all(word in str(caught.value) for word in words)


def test_sharing_needs_a_job():
    with pytest.raises(ValueError, match="sharing is for data parallel training, but parallel_mode is 'stand_alone'"):
        thor.THOR(Mlp(), 0.1, 0.1, sharing=thor.Sharing())
