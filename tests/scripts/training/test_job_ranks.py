"""Data-parallel jobs: what is refused, and two processes train, evaluate and end as one."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from scripts.run_folder.metrics_recorder import read_metrics
from scripts.settings.yaml_config import save_config
from scripts.training import job_ranks
from scripts.training.evaluation import Evaluator
from scripts.training.loop import train
from tests.scripts.training.test_loop import last_tensors, quiet
from tests.support.msrun import run_job, starts_processes
from tests.support.tiny_runs import tiny_settings
from thor.distributed import ranks as ranks
from thor.runtime.errors import UserError


def test_the_environment_announces_a_job():
    assert job_ranks.announced_count({}) == 1
    assert job_ranks.announced_count({"RANK_SIZE": "8"}) == 1, (
        "left over from something else: it takes a table or msrun"
    )
    assert job_ranks.announced_count({"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "4"}) == 4
    assert job_ranks.announced_count({"RANK_TABLE_FILE": "hccl.json", "RANK_SIZE": "8"}) == 8
    with pytest.raises(UserError, match="MS_WORKER_NUM = 'two' in the environment"):
        job_ranks.announced_count({"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "two"})


def test_settings_may_not_contradict_the_job(tmp_path):
    settings = tiny_settings(tmp_path, "momentum")
    of_rank = job_ranks.Ranks(1, 2).settings(settings)
    assert (of_rank.data.rank, of_rank.data.ranks, of_rank.share) == (1, 2, 4)
    with pytest.raises(UserError, match=r"data\.ranks = 4: the job has 2 processes"):
        job_ranks.Ranks(1, 2).settings(job_ranks.with_ranks(settings, 0, 4))
    with pytest.raises(UserError, match=r"data\.rank = 1: this process is rank 0"):
        job_ranks.Ranks(0, 2).settings(job_ranks.with_ranks(settings, 1, 2))
    with pytest.raises(UserError, match="batch_size = 8 must be a multiple of the number of processes, 3"):
        job_ranks.Ranks(0, 3).settings(settings)
    with pytest.raises(UserError, match=r"none of a job: start it with  python scripts/cluster/launch\.py --devices 2"):
        train(job_ranks.with_ranks(settings, 0, 2), console=quiet())


def test_a_part_of_the_test_set_is_no_result(tmp_path):
    settings = job_ranks.with_ranks(tiny_settings(tmp_path, "momentum"), 0, 2)
    with pytest.raises(UserError, match=r"data\.ranks = 2: this process would evaluate a part only"):
        Evaluator(None, None, None, settings)


@pytest.mark.parametrize("step", [-1, 0, 7, 2**24 + 1, 2**31 + 5])
def test_a_step_number_survives_float32(step, monkeypatch):
    def alone(self, values):
        return np.asarray(values, np.float32)

    monkeypatch.setattr(job_ranks.Ranks, "total", alone)
    assert job_ranks.Ranks(0, 2).broadcast_step(step) == step


def with_other(monkeypatch, *sent):
    """Sums over two ranks, of which the other one sends these vectors, one a call."""
    rest = list(sent)
    monkeypatch.setattr(job_ranks.Ranks, "total", lambda self, values: np.asarray(values, np.float32) + rest.pop(0))


def test_parameters_are_averaged_and_copied(monkeypatch):
    def parameters():
        return [ms.Parameter(Tensor(np.float32([[1, 2]])), name="a"), ms.Parameter(Tensor(np.float32(5)), name="b")]

    with_other(monkeypatch, [3.0, 6.0, 1.0])
    first = iter([[[7.0, 8.0]], 9.0])
    monkeypatch.setattr(ranks.ops, "Broadcast", lambda root: lambda sent: (Tensor(np.float32(next(first))),))
    mine = parameters()
    job_ranks.Ranks(1, 2).average(mine)
    assert [p.asnumpy().tolist() for p in mine] == [[[2.0, 4.0]], 3.0]
    job_ranks.Ranks(1, 2).copy_first(mine)
    assert [p.asnumpy().tolist() for p in mine] == [[[7.0, 8.0]], 9.0]
    alone = parameters()
    job_ranks.Ranks().copy_first(alone)
    assert [p.asnumpy().tolist() for p in alone] == [[[1.0, 2.0]], 5.0]


def test_one_request_ends_all_and_the_loss_is_the_mean(monkeypatch):
    with_other(monkeypatch, [3.0, 1.0], [3.0, 0.0])
    assert job_ranks.Ranks(0, 2).agree(1.0, False) == (2.0, True)
    assert job_ranks.Ranks(0, 2).agree(1.0, False) == (2.0, False)


class Nothing:
    """The part of a test set that is all padding."""

    def epoch(self, epoch):
        yield np.zeros((2, 3), np.float32), np.full(2, -100, np.int32)


@pytest.mark.parametrize(
    ("loss", "sums", "values"),
    [  # of four examples elsewhere: loss, accuracy, top5, error, and which of them are known there
        ("cross_entropy", [8.0, 3.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], {"accuracy": 0.75}),
        ("squared_error", [8.0, 0.0, 0.0, 6.0, 1.0, 0.0, 0.0, 1.0], {"error": 1.5}),
    ],
)
def test_a_rank_without_an_example_has_the_scores_of_the_others(tmp_path, monkeypatch, loss, sums, values):
    def never(*_batch):
        raise AssertionError("a network is not run on a batch without an example")

    settings = job_ranks.with_ranks(tiny_settings(tmp_path, "momentum", loss=loss), 1, 2)
    with_other(monkeypatch, [4.0, *sums])
    monkeypatch.setattr(Evaluator, "_outputs", lambda self: never)
    monkeypatch.setattr(ms, "jit", lambda function: function)
    found = Evaluator(nn.SequentialCell(nn.Dense(3, 10)), None, Nothing(), settings, job_ranks.Ranks(1, 2))()
    assert (found.count, found.loss, found.values) == (4, 2.0, values)


#: each rank holds the inverses of some layers; a checkpoint has them all
SHARED = {"learning_rate": 0.01, "damping": 1.0, "clip": 1.0, "interval": 4, "block_size": 16}
SHARED["grad_worker_fraction"] = 0.0


def variants(tmp_path, suffix):
    """Settings of what a step can be: plain, accumulated, under a live loss scale and a bound; 39 test images."""
    common = {"epochs": 1, "data": {"folder": str(tmp_path / "data"), "test_size": 39}, "checkpoint_every": 3}
    return {
        "plain": tiny_settings(tmp_path, "momentum", f"plain{suffix}", **common, ema=0.9),
        "accumulated": tiny_settings(tmp_path, "momentum", f"accumulated{suffix}", **common, accumulation=2),
        "scaled": tiny_settings(tmp_path, "adam", f"scaled{suffix}", **common, loss_scale="dynamic", clip_norm=1.0),
        "thor": tiny_settings(tmp_path, "thor", f"thor{suffix}", **common, thor=SHARED),
    }


@starts_processes
def test_two_processes_train_and_evaluate_as_one(tmp_path):
    for name, settings in variants(tmp_path, "-job").items():
        save_config(settings, tmp_path / f"{name}.yaml")
    run_job(
        tmp_path,
        "tests/scripts/training/training_worker.py",
        *[tmp_path / f"{name}.yaml" for name in variants(tmp_path, "")],
    )
    for name, settings in variants(tmp_path, "-alone").items():
        alone, job = train(settings, console=quiet()).folder, tmp_path / f"{name}-job"
        expected, found = last_tensors(alone), last_tensors(job)
        assert expected.keys() == found.keys()
        for key in expected:
            np.testing.assert_allclose(found[key], expected[key], rtol=1e-3, atol=1e-5, err_msg=f"{name}: {key}")
        lines = [line for line in read_metrics(job) if line["kind"] != "ranks"]
        for line, other in zip(lines, read_metrics(alone), strict=True):
            assert (line["kind"], line["step"]) == (other["kind"], other["step"])
            for key in other.keys() & {"loss", "train_loss", "test_loss", "test_error"}:
                assert line[key] == pytest.approx(other[key], rel=1e-4), (name, key, line)
        summary = json.loads((job / "summary.json").read_text())
        assert summary["ranks"] == 2 and ("skew" in summary) == (name == "thor")
    seconds = [line["inverse_seconds"] for line in read_metrics(tmp_path / "thor-job") if line["kind"] == "ranks"]
    assert len(seconds) == summary["skew"]["refreshes"] == 3 and all(len(own) == 2 for own in seconds)
    assert summary["skew"]["max_s"] == max(abs(one - other) for one, other in seconds)
