"""What a configuration says reaches the network, the loss and the optimizer that it is about."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import thor
from models.bert import TiedDecoder
from scripts.data import imagenet_samples
from scripts.data.factory import open_feeds
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.settings.yaml_config import load_config, save_config, validate
from scripts.training.loop import train
from scripts.training.networks import build_loss, build_network
from scripts.training.optimizers import build_stepper, muon_groups
from tests.scripts.training.test_loop import quiet
from tests.support.tiny_runs import tiny_settings
from thor.runtime.errors import UserError


def net():
    return nn.SequentialCell(nn.Dense(3, 4), nn.LayerNorm([4]), nn.Dense(4, 2))


def net_for_muon():
    """With a kernel, and with an output layer."""
    return nn.SequentialCell(nn.Dense(3, 4), nn.LayerNorm([4]), nn.Conv2d(1, 1, 3), nn.Dense(4, 2))


def optimizer_of(name, own):
    settings = validate({"optimizer": name, name: own, "device": "CPU", "mode": "pynative"})
    return build_stepper(settings, net_for_muon() if name == "muon" else net(), nn.MSELoss(), 10).optimizer


def weighted(output, target):
    return (output.astype(ms.float32) * target).sum()


def number(value):
    return round(float(value.asnumpy() if isinstance(value, ms.Tensor) else value), 6)


@pytest.mark.parametrize(
    ("own", "reached"),
    [
        (
            {"relative_damping": 0.5},
            lambda optimizer: optimizer.options.relative and optimizer.options.damping(0) == 0.5,
        ),
        ({"relative_damping": 0.5}, lambda optimizer: optimizer.options.graft and optimizer.options.interval(0) == 1),
        ({"graft": True}, lambda optimizer: optimizer.options.graft),
        ({"momentum": 0.7}, lambda optimizer: number(optimizer.inner.momentum) == 0.7),
        ({"split": "block"}, lambda optimizer: optimizer.options.plan.split == "block"),
        ({"split": "block+rank", "rank": 5}, lambda optimizer: optimizer.options.plan.rank == 5),
        ({"block_size": 16}, lambda optimizer: optimizer.options.plan.block_size == 16),
        ({"refresh": "thor_nt"}, lambda optimizer: optimizer.options.refresh == thor.TraceRule.thor_nt()),
        (
            {"refresh": {"update": 0.3, "stop": 0.1, "start": 7}},
            lambda optimizer: optimizer.options.refresh == thor.TraceRule(update=0.3, stop=0.1, start=7),
        ),
        (
            {"interval": {"start": 2, "end": 9, "factor": 1.5}},
            lambda optimizer: [optimizer.options.interval(step) for step in (0, 4, 99)] == [2, 4, 9],
        ),
        ({"factor_interval": 3}, lambda optimizer: optimizer.options.gather_interval(0) == 3),
        ({"factor_share": 0.25}, lambda optimizer: optimizer.options.factor_share == 0.25),
        ({"factor_decay": 0.5}, lambda optimizer: optimizer.options.factor_decay == 0.5),
        ({"skip": ["^0$"]}, lambda optimizer: [layer.name for layer in optimizer.layers] == ["2"]),
        ({"norms": True}, lambda optimizer: "1.beta" in [layer.name for layer in optimizer.layers]),
        ({"clip": 0.5}, lambda optimizer: optimizer.options.clip == 0.5),
        ({"clip_each": 0.5}, lambda optimizer: optimizer.options.clip_each == 0.5),
        ({"weight_sharing": "reduce"}, lambda optimizer: optimizer.layers[0].weight_sharing == "reduce"),
        ({"weight_decay": 0.5}, lambda optimizer: number(optimizer.inner.weight_decay) == 0.5),
        ({"damping": 0.5}, lambda optimizer: optimizer.options.damping(0) == 0.5),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_thors_by_inverses(own, reached):
    damped = {} if "relative_damping" in own else {"damping": 0.03}
    assert not reached(optimizer_of("thor", {"damping": 0.03})), "a default would prove nothing"
    assert reached(optimizer_of("thor", damped | own))


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"damping": 0.03},
        {"precondition": "inverse"},
        {"precondition": "inverse", "clip": 0.5},
        {"damping": 0.1, "graft": True},
    ],
    ids=str,
)
def test_what_is_left_out_is_filled_in_as_by_the_optimizer(own):
    section = validate({"optimizer": "thor", "thor": own}).thor
    theirs, ours = thor.THOR(net(), section.learning_rate, **own).options, optimizer_of("thor", own).options
    assert ours.kind == theirs.kind == section.precondition
    for name in ("relative", "factor_decay", "refresh", "plan", "clip", "graft", "adam"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for step in (0, 7, 500):
        assert ours.damping_at(step) == theirs.damping_at(step)
        assert ours.interval(step) == theirs.interval(step)


def test_a_saved_configuration_has_what_was_filled_in(tmp_path):
    """A run that goes on has the settings that it began with, whatever the defaults are by then."""
    settings = validate({"optimizer": "thor", "device": "CPU"})
    save_config(settings, tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert all(f"{name}:" in text for name in ("precondition", "split", "interval", "refresh", "rate_factor", "beta2"))
    assert load_config(tmp_path / "config.yaml") == settings


@pytest.mark.parametrize(
    ("own", "reached"),
    [
        ({"rate_factor": 0.5}, lambda optimizer: optimizer.options.adam.rate_factor == 0.5),
        ({"beta1": 0.7}, lambda optimizer: optimizer.options.adam.beta1 == 0.7),
        ({"beta2": 0.7}, lambda optimizer: optimizer.options.adam.beta2 == 0.7),
        ({"epsilon": 0.5}, lambda optimizer: optimizer.options.adam.epsilon == 0.5),
        ({"refresh": "thor"}, lambda optimizer: optimizer.options.refresh == thor.TraceRule.thor(start=90)),
        ({"interval": 7}, lambda optimizer: optimizer.options.interval(0) == 7),
        ({"factor_decay": 0.5}, lambda optimizer: optimizer.options.factor_decay == 0.5),
        ({"weight_decay": 0.5}, lambda optimizer: 0.5 in optimizer.decays),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_thors_in_an_eigenbasis(own, reached):
    assert not reached(optimizer_of("thor", {})), "a default would prove nothing"
    assert reached(optimizer_of("thor", own))


@pytest.mark.parametrize(
    ("name", "own", "reached"),
    [
        ("momentum", {"momentum": 0.7}, lambda optimizer: number(optimizer.alpha) == 0.7),
        ("momentum", {"mode": "nesterov"}, lambda optimizer: optimizer.nesterov),
        ("momentum", {"weight_decay": 0.5}, lambda optimizer: number(optimizer.weight_decay) == 0.5),
        ("adam", {"beta1": 0.7}, lambda optimizer: number(optimizer.beta1) == 0.7),
        ("adam", {"beta2": 0.7}, lambda optimizer: number(optimizer.beta2) == 0.7),
        ("adam", {"epsilon": 0.5}, lambda optimizer: number(optimizer.epsilon) == 0.5),
        ("adam", {"use_nesterov": True}, lambda optimizer: optimizer.use_nesterov),
        ("adafactor", {"beta2_decay": -0.5}, lambda optimizer: optimizer.param_groups[0]["beta2_decay"] == -0.5),
        ("adafactor", {"eps1": 1e-5, "eps2": 1e-2}, lambda optimizer: optimizer.param_groups[0]["eps"] == (1e-5, 1e-2)),
        ("adafactor", {"d": 2.0}, lambda optimizer: optimizer.param_groups[0]["d"] == 2.0),
        ("adafactor", {"weight_decay": 0.5}, lambda optimizer: optimizer.param_groups[0]["weight_decay"] == 0.5),
        ("muon", {"momentum": 0.7}, lambda optimizer: number(optimizer.momentum) == 0.7),
        ("muon", {"nesterov": False}, lambda optimizer: not optimizer.nesterov),
        ("muon", {"ns_steps": 3}, lambda optimizer: optimizer.iteration[1] == 3),
        ("muon", {"ns_dtype": "bfloat16"}, lambda optimizer: optimizer.iteration[3] == ms.bfloat16),
        ("muon", {"adjust_lr_fn": "original"}, lambda optimizer: optimizer.adjust_lr_fn == "original"),
        ("muon", {"flatten": False}, lambda optimizer: optimizer.by_muon == ["0.weight"]),
        ("muon", {"adamw": ["^0"]}, lambda optimizer: optimizer.by_muon == ["2.weight", "3.weight"]),
        ("muon", {"adamw_learning_rate": 0.5}, lambda optimizer: optimizer.is_group_lr),
        ("muon", {"adamw_beta1": 0.7}, lambda optimizer: number(optimizer.beta1) == 0.7),
        ("muon", {"adamw_beta2": 0.7}, lambda optimizer: number(optimizer.beta2) == 0.7),
        ("muon", {"adamw_epsilon": 0.5}, lambda optimizer: number(optimizer.epsilon) == 0.5),
        ("soap", {"beta1": 0.7}, lambda optimizer: number(optimizer.beta1) == 0.7),
        ("soap", {"beta2": 0.7}, lambda optimizer: number(optimizer.beta2) == number(optimizer.shampoo_beta) == 0.7),
        ("soap", {"shampoo_beta": 0.7}, lambda optimizer: number(optimizer.shampoo_beta) == 0.7),
        ("soap", {"epsilon": 0.5}, lambda optimizer: number(optimizer.epsilon) == 0.5),
        ("soap", {"precondition_frequency": 3}, lambda optimizer: optimizer.precondition_frequency == 3),
        ("soap", {"max_precond_dim": 3}, lambda optimizer: optimizer.moves[0].axes == (1,)),
        ("soap", {"merge_dims": True}, lambda optimizer: optimizer.moves[0].shape == (12,)),
        ("soap", {"precondition_1d": True}, lambda optimizer: optimizer.moves[1].axes == (0,)),
        ("soap", {"normalize_grads": True}, lambda optimizer: optimizer.normalize_grads),
        ("soap", {"weight_decay": 0.5}, lambda optimizer: number(optimizer.weight_decay) == 0.5),
        ("muon", {"weight_decay": 0.5}, lambda optimizer: {number(d) for d in optimizer.weight_decay} == {0.0, 0.5}),
    ],
)
def test_those_of_first_order(name, own, reached):
    assert not reached(optimizer_of(name, {})), "a default would prove nothing"
    assert reached(optimizer_of(name, own))


@pytest.mark.parametrize("tied", [False, True])
def test_an_output_layer_that_takes_an_embeddings_table_leaves_all_matrices_to_muon(tied):
    class Words(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embedding, self.hidden = nn.Embedding(5, 4), nn.Dense(4, 4)
            self.output = TiedDecoder(self.embedding) if tied else nn.Dense(4, 5)

        def construct(self, tokens):
            return self.output(self.hidden(self.embedding(tokens)))

    groups = muon_groups(Words(), validate({"optimizer": "muon", "device": "CPU"}))
    by_adamw = [p.name for group in groups if "use_muon" in group for p in group["params"]]
    assert by_adamw == ["output.weight"]  # of the tied one, the table, which the output layer has renamed


def test_a_pattern_of_weights_for_adamw_that_matches_none_is_refused():
    settings = validate({"optimizer": "muon", "muon": {"adamw": ["head"]}, "device": "CPU"})
    with pytest.raises(UserError, match=r"muon.adamw = 'head': matches no weight; the matrices are 0.weight, 1.weight"):
        muon_groups(nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2)), settings)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_mixed_precision_rounds_and_weights_stay_float32(level):
    outputs = []
    for amp in ("O0", level):
        ms.set_seed(0)
        network = build_network(validate({"network": "smallconv", "amp": amp, "device": "CPU"})).set_train(False)
        assert {weight.dtype for weight in network.trainable_params()} == {ms.float32}
        images = np.random.default_rng(0).standard_normal((4, 1, 28, 28)).astype(np.float32)
        outputs.append(network(ms.Tensor(images)).astype(ms.float32).asnumpy())
    assert not np.array_equal(*outputs)
    np.testing.assert_allclose(*outputs, rtol=2e-2, atol=2e-2)


def test_label_smoothing_is_a_share_of_each_target_for_all_classes():
    scores, labels = np.array([[2.0, -1.0, 0.5], [0.0, 1.0, 3.0]], np.float32), np.array([0, 1], np.int32)
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    targets = 0.9 * np.eye(3)[labels] + 0.1 / 3
    loss = build_loss(validate({"label_smoothing": 0.1}))
    assert float(loss(ms.Tensor(scores), ms.Tensor(labels)).asnumpy()) == pytest.approx(-(targets * logs).sum(1).mean())


@pytest.mark.parametrize(("scale", "survives"), [(1.0, False), (2.0**12, True)])
def test_a_fixed_loss_scale_saves_what_float16_does_not_hold(scale, survives):
    network = nn.Dense(1, 1, weight_init="zeros", has_bias=False).to_float(ms.float16)
    descent = {"momentum": {"learning_rate": 1.0, "momentum": 0.0, "schedule": "constant"}}
    settings = validate({"optimizer": "momentum", "loss_scale": scale, "mode": "pynative", **descent})
    step = build_stepper(settings, network, weighted, 10).step
    step(ms.Tensor([[1.0]], ms.float32), ms.Tensor([[1e-8]], ms.float32))
    assert (network.weight.asnumpy().item() != 0) == survives
    if survives:
        assert network.weight.asnumpy().item() == pytest.approx(-1e-8, rel=1e-2)


def test_what_is_done_to_photographs(tmp_path):
    data = {"name": "imagenet_samples", "folder": str(imagenet_samples.arrange(tmp_path)), "size": 32}
    for own in ({"strict": False, "augment": False}, {"strict": True, "augment": True}):
        feeds = open_feeds(validate({"data": data | own}))
        assert (feeds.train.strict, feeds.train.augment) == (own["strict"], own["augment"])
        assert feeds.test.strict == own["strict"] and not feeds.test.training


def test_lines_of_steps_come_as_often_as_log_every_says(tmp_path):
    run = train(tiny_settings(tmp_path, "momentum", log_every=4), console=quiet())
    assert [line["step"] for line in read_metrics(run.folder) if line["kind"] == "step"] == [4, 8, 12, 16, 20]
