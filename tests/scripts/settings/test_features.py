"""What a configuration can ask for besides data, network and optimizer."""

import csv
import json
import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import first_order
from scripts.run_folder.checkpoints import choose, load_network
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.run_folder.progress_record import Position
from scripts.settings.yaml_config import validate
from scripts.training.loop import train
from scripts.training.networks import build_network
from scripts.training.optimizers import build_stepper, decay_groups
from scripts.training.run import CHECKPOINTS, advanced
from scripts.training.weight_average import WeightAverage
from tests.scripts.training.test_loop import interrupt_at, last_tensors, quiet, without_times
from tests.support.tiny_runs import tiny_settings
from thor.runtime.errors import UserError


def test_average_follows_its_formula_and_swaps_in_place():
    net = nn.Dense(3, 2)
    average = WeightAverage(net, 0.5)
    assert [p.name for p in average.get_parameters()] == ["ema.weight", "ema.bias"]
    expected = net.weight.asnumpy().copy()
    for number in range(4):
        net.weight.set_data(ms.Tensor(np.full((2, 3), float(number), np.float32)))
        average = average if number == 0 else _same_values(WeightAverage(net, 0.5), average)
        average.update(number)
        decay = min(0.5, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * number
        np.testing.assert_allclose(average.averages[0].asnumpy(), expected, rtol=1e-6)
    with average.swapped_in():
        np.testing.assert_allclose(net.weight.asnumpy(), expected, rtol=1e-6)
        np.testing.assert_array_equal(average.averages[0].asnumpy(), np.full((2, 3), 3.0))
    np.testing.assert_array_equal(net.weight.asnumpy(), np.full((2, 3), 3.0))


def _same_values(new, old):
    """set_data gives a weight new storage, which a compiled function does not see: a new one with the old values."""
    for target, source in zip(new.averages, old.averages, strict=True):
        target.set_data(ms.Tensor(source.asnumpy()))
    return new


def test_averages_are_evaluated_saved_and_kept_apart_from_the_weights(tmp_path):
    plain = train(tiny_settings(tmp_path, "momentum", "plain", epochs=1), console=quiet())
    averaged = train(tiny_settings(tmp_path, "momentum", "averaged", epochs=1, ema=0.9), console=quiet())
    weights, both = last_tensors(plain.folder), last_tensors(averaged.folder)
    for name, value in weights.items():
        np.testing.assert_array_equal(value, both[name])
    assert not np.array_equal(both["ema.encoder.0.weight"], both["encoder.0.weight"])
    net = build_network(averaged.settings)
    assert load_network(choose(averaged.folder / CHECKPOINTS, "last"), net) == "averaged weights"
    np.testing.assert_array_equal(net.encoder[0].weight.asnumpy(), both["ema.encoder.0.weight"])
    losses = [
        [line["test_loss"] for line in read_metrics(run.folder) if line["kind"] == "epoch"] for run in (plain, averaged)
    ]
    assert losses[0] != losses[1]


def test_best_and_last_checkpoints_and_a_bounded_number(tmp_path):
    settings = tiny_settings(tmp_path, "momentum", checkpoint_every=2, keep=3, eval_every_steps=5)
    run = train(settings, console=quiet())
    names = sorted(path.name for path in (run.folder / CHECKPOINTS).glob("*.ckpt"))
    assert names == ["best.ckpt", "step-00000016.ckpt", "step-00000018.ckpt", "step-00000020.ckpt"]
    evaluated = {
        line["step"]: line["test_error"] for line in read_metrics(run.folder) if line["kind"] in ("eval", "epoch")
    }
    assert list(evaluated) == [5, 10, 15, 20]
    best = json.loads((run.folder / CHECKPOINTS / "best.json").read_text())
    assert best["step"] == min(evaluated, key=evaluated.get)
    assert best["best"] == min(evaluated.values())


@pytest.mark.parametrize(
    ("every", "steps", "expected"), [(2, 5, [5, 10, 15, 20]), (2, 10, [10, 20]), (1, 10, [10, 20])]
)
def test_every_evaluation_that_was_asked_for_is_made_once(tmp_path, every, steps, expected):
    """Ten steps an epoch; the end of an epoch evaluates itself, or leaves it to the step."""
    settings = tiny_settings(tmp_path, "momentum", eval_every=every, eval_every_steps=steps)
    lines = read_metrics(train(settings, console=quiet()).folder)
    assert [line["step"] for line in lines if "test_error" in line] == expected


def test_an_end_that_is_asked_for_does_not_wait_for_an_evaluation_which_the_continued_run_makes(tmp_path, monkeypatch):
    from scripts.training.evaluation import Evaluator

    whole = train(tiny_settings(tmp_path, "momentum", "whole", eval_every_steps=4), console=quiet())
    settings, evaluate, seen = tiny_settings(tmp_path, "momentum", eval_every_steps=4), Evaluator.__call__, []
    with monkeypatch.context() as patch:
        interrupt_at(7, patch)  # is seen in the step after it
        patch.setattr(Evaluator, "__call__", lambda *rest: seen.append(1) or evaluate(*rest))
        run = train(settings, console=quiet())
    assert (run.position.step, len(seen)) == (8, 1), "after step 4, and not after step 8"
    run = train(settings, resume=True, console=quiet())
    assert without_times(run.folder) == without_times(whole.folder)


def test_the_mean_loss_of_an_epoch_is_of_the_steps_that_have_one():
    position = Position()
    for loss in (1.0, math.nan, 3.0):
        position = advanced(position, loss, 0.1, 1)
    assert (position.loss_sum, position.step_in_epoch, position.not_finite) == (4.0, 3, 1)


def test_the_loss_of_an_update_stands_for_all_its_steps():
    position = Position()
    for loss in (1.0, 2.0, 7.0, math.nan, 5.0, 3.0):
        position = advanced(position, loss, 0.1, 2)
    assert (position.loss_sum, position.step_in_epoch, position.not_finite) == (2 * 2.0 + 2 * 3.0, 6, 2)


def test_weight_decay_leaves_out_one_dimension(tmp_path):
    settings = tiny_settings(tmp_path, "momentum", decay_all=False)
    net = build_network(settings)
    with_decay, without = decay_groups(net, settings, 0.1)
    assert {p.ndim for p in with_decay["params"]} == {2} and {p.ndim for p in without["params"]} == {1}
    assert (with_decay["weight_decay"], without["weight_decay"]) == (0.1, 0.0)
    assert decay_groups(net, settings, 0.0) == net.trainable_params()


@pytest.mark.parametrize(
    ("name", "decaying"),
    [
        ("momentum", {"0.weight", "0.bias"}),
        ("adam", {"0.weight", "0.bias"}),
        ("adafactor", {"0.weight", "0.bias", "1.gamma", "1.beta"}),
        ("muon", {"0.weight", "0.bias"}),
        ("soap", {"0.weight", "0.bias"}),
    ],
)
def test_decay_of_all_goes_by_names_but_for_adafactor(name, decaying):
    """Without a gradient nothing else moves a weight."""
    net = nn.SequentialCell(nn.Dense(3, 4), nn.LayerNorm((4,)))
    weights = net.trainable_params()
    for weight in weights:
        weight.set_data(ms.Tensor(np.ones(weight.shape, np.float32)))
    settings = validate({"optimizer": name, name: {"weight_decay": 0.1}})
    optimizer = build_stepper(settings, net, nn.MSELoss(), 10).optimizer
    for _ in range(2):  # SOAP's first call moves nothing
        optimizer(tuple(ms.ops.zeros_like(weight) for weight in weights))
    assert {weight.name for weight in weights if np.all(weight.asnumpy() < 1)} == decaying
    assert all(np.all(weight.asnumpy() == 1) for weight in weights if weight.name not in decaying)


def test_decay_of_all_goes_by_names_in_thor():
    net = nn.SequentialCell(nn.Dense(3, 4), nn.LayerNorm((4,)))
    inner = build_stepper(validate({"thor": {"weight_decay": 0.1}}), net, nn.MSELoss(), 10).optimizer.inner
    decays = {weight.name: flag for weight, flag in zip(inner.parameters, inner.decay_flags, strict=True)}
    assert decays == {"0.weight": True, "0.bias": True, "1.gamma": False, "1.beta": False}


def test_only_matrices_decay_in_training(tmp_path):
    """One step with learning rate times decay = 1 leaves a matrix with the gradient alone, and a bias with all."""
    settings = tiny_settings(
        tmp_path, "momentum", decay_all=False, epochs=1, momentum={"learning_rate": 1e-4, "weight_decay": 1e4}
    )
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"train_size": 8})})
    start = {p.name: p.asnumpy().copy() for p in build_network(_seeded(settings)).trainable_params()}
    end = {p.name: p.asnumpy() for p in train(settings, console=quiet()).network.trainable_params()}
    assert np.abs(end["encoder.0.weight"]).max() < 0.1 * np.abs(start["encoder.0.weight"]).max()
    assert np.abs(end["encoder.0.bias"] - start["encoder.0.bias"]).max() < 0.1 * np.abs(start["encoder.0.bias"]).max()


def test_thor_takes_the_same_groups(tmp_path):
    settings = tiny_settings(tmp_path, "thor", decay_all=False)
    settings = settings.model_copy(update={"thor": settings.thor.model_copy(update={"weight_decay": 0.1})})
    net = build_network(settings)
    inner = build_stepper(settings, net, nn.MSELoss(), 10).optimizer.inner
    assert {(weight.ndim, flag) for weight, flag in zip(inner.parameters, inner.decay_flags, strict=True)} == {
        (2, True),
        (1, False),
    }


def test_adam_may_move_the_weights(tmp_path):
    """While damping is all of every factor, THOR with Adam inside is Adam alone; with curvature it is not.

    Directions are then gradients / damping, of which Adam makes the same step with an epsilon as much smaller.
    """
    ends = {}
    for name, damping, epsilon in (("adam", None, 1e-3), ("damped", 1e10, 1e-13), ("thor", 0.01, 1e-3)):
        adam = {"beta1": 0.8, "beta2": 0.99, "epsilon": epsilon}
        rate = {"learning_rate": 0.01, "schedule": "constant"}
        blocks = {"adam": adam, "thor": {"inner": "adam", "interval": 2, "damping": damping, **rate}}
        if damping is None:
            blocks = {"adam": {**adam, **rate}}
        settings = tiny_settings(tmp_path / name, "thor" if damping else "adam", epochs=1, **blocks)
        ends[name] = {p.name: p.asnumpy() for p in train(settings, console=quiet()).network.trainable_params()}
    for name, value in ends["adam"].items():
        np.testing.assert_allclose(ends["damped"][name], value, rtol=0, atol=5e-4, err_msg=name)
    assert any(np.abs(ends["thor"][name] - value).max() > 1e-2 for name, value in ends["adam"].items())


def test_thor_with_adam_inside_takes_its_groups_and_schedule(tmp_path):
    settings = tiny_settings(
        tmp_path, "thor", decay_all=False, thor={"inner": "adam", "damping": 0.03, "weight_decay": 0.1}, adam={}
    )
    stepper = build_stepper(settings, build_network(settings), nn.MSELoss(), 10)
    inner = stepper.optimizer.inner
    assert isinstance(inner, first_order.Adam) and inner.dynamic_lr
    assert {weight.ndim: flag for weight, flag in zip(inner.parameters, inner.decay_flags, strict=True)} == {
        2: True,
        1: False,
    }


def test_resume_with_adam_inside_is_exact(tmp_path, monkeypatch):
    thor = {"inner": "adam", "damping": 0.1, "interval": 4, "factor_interval": 2}
    undisturbed = train(tiny_settings(tmp_path, "thor", "undisturbed", thor=thor, adam={}), console=quiet())
    settings = tiny_settings(tmp_path, "thor", "disturbed", thor=thor, adam={})
    with monkeypatch.context() as patch:
        interrupt_at(7, patch)
        assert not train(settings, console=quiet()).finished
    resumed = train(settings, resume="auto", console=quiet())
    expected, found = last_tensors(undisturbed.folder), last_tensors(resumed.folder)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def _seeded(settings):
    ms.set_seed(settings.seed)
    return settings


def step_of(net=None, **settings):
    """(weight, one step) of a linear layer under plain gradient descent: w <- w - gradient."""
    net = net or nn.Dense(2, 1, weight_init="zeros", has_bias=False)
    descent = {"momentum": {"learning_rate": 1.0, "momentum": 0.0, "schedule": "constant"}}
    stepper = build_stepper(validate({"optimizer": "momentum", **descent, **settings}), net, nn.MSELoss(), 10)
    return net.trainable_params()[0], stepper.step


def batch(size):
    return ms.Tensor(np.array([[size, 0.0]], np.float32)), ms.Tensor(np.array([[-size]], np.float32))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_clipping_bounds_the_norm_of_an_update(accumulation):
    weight, step = step_of(clip_norm=0.5, accumulation=accumulation)
    for _ in range(accumulation):
        step(*batch(3.0))
    assert np.linalg.norm(weight.asnumpy()) == pytest.approx(0.5)
    free, step = step_of(clip_norm=1e6)
    step(*batch(3.0))
    assert np.linalg.norm(free.asnumpy()) == pytest.approx(18.0)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_dynamic_loss_scale_skips_an_overflow_and_moves(accumulation):
    weight, step = step_of(loss_scale="dynamic", accumulation=accumulation)
    for size in (1.0, 1e17)[-accumulation:]:  # the gradient 2e34 times 2^16 is above float32
        step(*batch(size))
    assert np.array_equal(weight.asnumpy(), [[0.0, 0.0]])
    assert step.own_state.loss_scale == 2.0**15
    for _ in range(accumulation):
        step(*batch(1.0))
    assert weight.asnumpy()[0, 0] == pytest.approx(-2.0)


def test_an_overflow_does_not_stay_in_moving_averages():
    net = nn.SequentialCell(nn.BatchNorm1d(2), nn.Dense(2, 1))
    net.set_train()
    _, step = step_of(net, loss_scale="dynamic")
    inputs, targets = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32), ms.Tensor(np.ones((2, 1), np.float32))
    step(ms.Tensor(inputs), targets)
    step(ms.Tensor(np.full_like(inputs, np.inf)), targets)
    assert step.own_state.loss_scale == 2.0**15
    found = [net[0].moving_mean.asnumpy().copy(), net[0].moving_variance.asnumpy()]
    assert np.isfinite(found).all(), "what they were some steps ago"
    step(ms.Tensor(inputs), targets)
    assert not np.array_equal(net[0].moving_mean.asnumpy(), found[0]), "and they move again"


@pytest.mark.parametrize("level, optimizer", [("O2", "momentum"), ("O3", "thor")])
def test_mixed_precision_trains_with_a_dynamic_loss_scale(tmp_path, level, optimizer):
    settings = tiny_settings(tmp_path, optimizer, amp=level, loss_scale="dynamic")
    run = train(settings, console=quiet())
    losses = [line["train_loss"] for line in read_metrics(run.folder) if line["kind"] == "epoch"]
    assert losses[1] < losses[0]
    names = {name for name in last_tensors(run.folder) if "loss_scale" in name}
    assert names  # the live scale is part of the checkpoint
    assert all(
        value.dtype == np.float32 for name, value in last_tensors(run.folder).items() if name == "encoder.0.weight"
    )


@pytest.mark.parametrize(
    "values, message",
    [
        ({"loss_scale": 0.5}, "loss_scale = 0.5: must be a number >= 1, or dynamic"),
        ({"loss_scale": "often"}, "loss_scale = 'often': must be a number >= 1, or dynamic"),
        ({"clip_norm": 1.0}, "clip_norm is for first-order optimizers; with thor use thor.clip_each, or"),
        ({"optimizer": "soap", "device": "Ascend"}, "soap needs eigh, which MindSpore has for CPU and GPU only"),
        ({"amp": "O1"}, "amp = 'O1': must be 'O0', 'O2' or 'O3'"),
        ({"ema": 1.0}, "ema = 1.0: must be less than 1"),
        ({"thor": {"inner": "sgd"}}, "thor.inner = 'sgd': must be 'momentum' or 'adam'"),
        (
            {"thor": {"damping": 0.1, "inner": "adam", "momentum": 0.8}},
            "thor: momentum belongs to inner = momentum; with inner = adam",
        ),
        (
            {"thor": {"damping": 0.1, "inner": "adam", "clip": 0.1}},
            "thor: clip bounds learning rate x direction, which is no step of",
        ),
        (
            {"thor": {"damping": 0.1, "inner": "adam"}, "adam": {"learning_rate": 0.01}},
            "adam.learning_rate means nothing with thor.inner = adam; set thor.learning_rate",
        ),
        (
            {"thor": {"damping": 0.1, "inner": "adam"}, "adam": {"schedule": "linear"}},
            "adam.schedule means nothing with thor.inner",
        ),
        (
            {"thor": {"damping": 0.1, "inner": "adam"}, "adam": {"weight_decay": 1e-4}},
            "adam.weight_decay means nothing with thor",
        ),
        (
            {"thor": {"damping": 0.1, "rank": 8}},
            "thor: rank belongs to split = block+rank, and split is block+mean; leave it out",
        ),
        (
            {"label_smoothing": 0.1, "loss": "squared_error"},
            "label_smoothing belongs to loss = cross_entropy, and loss is squared_error; leave it out",
        ),
        (
            {"thor": {"schedule": {"shape": "cosine", "power": 3.0}}},
            "thor.schedule: power belongs to the shapes polynomial and thor, and the shape is cosine",
        ),
        (
            {"momentum": {"schedule": {"shape": "constant", "final": 0.1}}},
            "momentum.schedule: final tells how a shape ends, and the shape is constant; leave it out",
        ),
        ({"adam": {"schedule": {"shape": "constant", "end_epoch": 3}}}, "adam.schedule: end_epoch tells how a shape"),
    ],
)
def test_errors(values, message):
    with pytest.raises(UserError) as caught:
        validate(values)
    assert message in str(caught.value)


def test_tables_tensorboard_and_summary_of_a_run(tmp_path):
    settings = tiny_settings(tmp_path, "thor", tensorboard=True, epochs=1)
    run = train(settings, console=quiet())
    lines = read_metrics(run.folder)
    with (run.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["loss"]) for row in rows if row["kind"] == "step"]
    assert losses == [line["loss"] for line in lines if line["kind"] == "step"]
    with (run.folder / "refreshes.csv").open() as file:
        assert [row["decision"] for row in csv.DictReader(file)] == [
            x["decision"] for x in lines if x["kind"] == "refresh"
        ]
    assert {x["step"] for x in lines if x["kind"] == "refresh"} == {1, 5, 9}, "after 0, 4 and 8 updates"
    (events,) = (run.folder / "tensorboard").iterdir()
    assert b"trace/encoder.0" in events.read_bytes()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert {"compiling", "curvature", "data", "evaluation", "checkpoint"} <= summary["phases"].keys()
    steps = sum(summary["phases"].get(name, [0])[0] for name in ("plain", "curvature", "refresh"))
    assert steps == 10
    assert summary["memory"]["curvature"]["total"] > 0 and summary["memory"]["peak"] > 2**20
