"""The shipped configurations: the published recipe's numbers, inheritance, and that each of them starts."""

import io

import pytest
from rich.console import Console

from scripts.data.factory import PUBLISHED_SIZES
from scripts.settings.yaml_config import load_config, read_yaml
from scripts.training import dry_run
from scripts.training.build import count_steps
from scripts.training.optimizers import thor_damping, thor_rate
from tests.support.paths import ROOT
from thor.runtime.errors import UserError

CONFIGS = ROOT / "scripts" / "config"
SHIPPED = sorted(CONFIGS.glob("*.yaml"))

# Epoch, learning rate and damping on Ascend, the same on GPU: the released configurations, worked out.
PUBLISHED = """
1/5004 0.0580291 0.0299996 0.0567189 0.0234497
1 0.0536869 0.027993 0.0513028 0.0220759
10 0.0247061 0.0150108 0.0187163 0.0128201
20 0.00838188 0.0075108 0.00448163 0.00700876
30 0.00191886 0.00375811 0.000597712 0.00383169
39 0.000126335 0.00201522 1.5325e-05 0.00222518
40 4.66719e-05 0.00188041 4.77204e-06 0.00209478
"""


@pytest.mark.parametrize("device, column", [("ascend", 0), ("gpu", 2), ("cpu", 0)])
def test_thor_recipe_is_the_published_one(device, column):
    settings = load_config(CONFIGS / f"resnet50_imagenet_thor_{device}.yaml")
    batches = PUBLISHED_SIZES["imagenet"] // settings.batch_size
    updates = count_steps(settings, batches) / settings.accumulation
    assert updates == 5004, "global batch 256 on every device"
    rate, damping = thor_rate(settings, updates), thor_damping(settings, updates)
    for line in PUBLISHED.split("\n")[1:-1]:
        epoch, *values = line.split()
        update = 0 if "/" in epoch else 5004 * int(epoch) - 1
        assert rate(update) == pytest.approx(float(values[column]), rel=1e-5)
        assert damping(update) == pytest.approx(float(values[column + 1]), rel=1e-5)
    own = settings.thor
    assert (own.momentum, own.weight_decay, settings.label_smoothing) == (0.9, 5e-4, 0.1)
    assert (own.interval.start, own.interval.end, own.factor_decay, own.split, own.block_size) == (
        834,
        834,
        0.0,
        "block",
        128,
    )
    assert settings.network_options == {"num_classes": 1001, "init": "he_normal", "zero_init_last": True}
    assert own.schedule.warmup_epochs == 0
    assert own.factor_interval == 834
    assert settings.epochs == (40 if device == "gpu" else 45)
    assert (settings.amp, settings.loss_scale) == (("O0", 1.0) if device == "cpu" else ("O2", 128.0))


# Update, learning rate and damping: (start - 1e-6) (1 - update / 30 000)^power + 1e-6, of power 2 and 4, worked out.
PUBLISHED_BERT = """
0 0.006464 0.007035
1 0.00646357 0.00703406
3000 0.00523603 0.00461601
10000 0.00287344 0.00139043
15000 0.00161675 0.000440625
24000 0.00025952 1.22544e-05
29999 1.00001e-06 1e-06
30000 1e-06 1e-06
50000 1e-06 1e-06
"""


@pytest.mark.parametrize("updates_per_epoch", [7.0, 12_345.0])  # they count updates, whatever the size of the text
def test_bert_large_recipe_is_the_published_one(updates_per_epoch):
    settings = load_config(CONFIGS / "bert_large_thor_ascend.yaml")
    rate, damping = thor_rate(settings, updates_per_epoch), thor_damping(settings, updates_per_epoch)
    for line in PUBLISHED_BERT.split("\n")[1:-1]:
        update, *values = line.split()
        assert rate(int(update)) == pytest.approx(float(values[0]), rel=1e-5)
        assert damping(int(update)) == pytest.approx(float(values[1]), rel=1e-5)
    own = settings.thor
    assert (own.momentum, own.interval.start, own.interval.end) == (0.9, 100, 100)
    assert (settings.batch_size / 8, settings.loss_scale, settings.decay_all) == (12, 1024.0, False)


def test_momentum_baseline():
    settings = load_config(CONFIGS / "resnet50_imagenet_momentum_gpu.yaml")
    own = settings.momentum
    assert (settings.epochs, settings.batch_size, own.learning_rate * 8) == (90, 256, 0.8)
    assert (own.schedule.shape, own.schedule.warmup_epochs, own.weight_decay) == ("linear", 2, 1e-4)


def test_every_recipe_is_there():
    names = {path.stem for path in SHIPPED}
    for optimizer in ("thor", "momentum", "adam", "adafactor"):
        assert {f"resnet50_imagenet_{optimizer}_{device}" for device in ("ascend", "gpu", "cpu")} <= names
    for data in ("cifar10", "cifar100"):
        assert {f"resnet20_{data}_{optimizer}" for optimizer in ("thor", "momentum")} <= names


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_configuration_starts(path, tmp_path, monkeypatch):
    """Its folder is its name; network, optimizer and schedules are built (small stand-ins for most large networks)."""
    for variable in ("IMAGENET_DIR", "CIFAR10_DIR", "CIFAR100_DIR"):
        monkeypatch.delenv(variable, raising=False)
    overrides = []
    if path.stem.startswith("bible"):
        (tmp_path / "01_ge.txt").write_text("And God said, Let there be light: and there was light.\n" * 2000)
        overrides = ["--data.folder", str(tmp_path), "--batch_size", "8"]
    if path.stem.startswith(("austen", "bert")):
        for name in ("persuasion", "emma"):
            (tmp_path / f"{name}.txt").write_text("it is a truth universally acknowledged . " * 2000)
        overrides = ["--data.folder", str(tmp_path), "--batch_size", "8"]
    if path.stem.startswith("bert_large"):
        overrides += ["--network", "bert_tiny"]
    if path.stem.startswith("resnet50") and path.stem != "resnet50_imagenet_thor_ascend":
        overrides = ["--network", "resnet18"]
    settings = load_config(path, overrides)
    assert settings.out.replace("/", "_").endswith(path.stem.removesuffix("_cpu")) or settings.out.endswith(path.stem)
    printed = io.StringIO()
    plan = dry_run.show(settings, Console(file=printed, width=100))
    assert "Tapped" not in printed.getvalue()  # layers have the names that their author knows
    assert plan.steps_per_epoch
    assert all("Ascend" in note or "GPU" in note or "the data" in note for note in plan.notes), plan.notes
    assert len(getattr(plan.optimizer, "layers", "x")) > 0


def test_inheritance(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one.yaml").write_text("epochs: 1\nthor: {damping: 0.1, momentum: 0.5}\ndata: {crop: 2}\n")
    (tmp_path / "two.yaml").write_text("base: deep/one.yaml\nepochs: 2\nthor: {damping: 0.2}\n")
    (tmp_path / "device.yaml").write_text("device: CPU\nepochs: 3\n")
    (tmp_path / "all.yaml").write_text("base: [two.yaml, device.yaml]\ndata: {flip: true}\n")
    settings = load_config(tmp_path / "all.yaml")
    assert (settings.epochs, settings.thor.damping, settings.thor.momentum) == (3, 0.2, 0.5)
    assert (settings.device, settings.data.crop, settings.data.flip) == ("CPU", 2, True)


@pytest.mark.parametrize(
    "text, message",
    [
        ("base: nowhere.yaml", "nowhere.yaml: no such file"),
        ("base: 3", "base = 3: must be a file, or a list of files"),
        ("base: me.yaml", "base me.yaml is based on this file itself"),
    ],
)
def test_bad_bases(tmp_path, text, message):
    (tmp_path / "me.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_yaml(tmp_path / "me.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "schedule, message",
    [
        ("{shape: thor, warmup_epochs: 1}", "the shape thor has neither warmup_epochs nor final"),
        ("{shape: cosine, end_epoch: 3, end_update: 30}", "has both end_epoch and end_update; give one of them"),
        ("{shape: cosine, halve_at: [3]}", "halve_at belongs to the shape thor, and the shape is cosine"),
    ],
)
def test_bad_schedules(schedule, message):
    with pytest.raises(UserError) as caught:
        load_config(None, ["--thor.schedule", schedule])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "settings, message",
    [
        ("{damping: 0.03, damping_decay: 0.5, damping_schedule: {shape: linear, final: 0.1}}", "give one of them"),
        ("{damping: 0.03, damping_schedule: linear}", "damping_schedule needs final > 0"),
        (
            "{damping: 0.03, damping_schedule: {shape: linear, final: 0.1, warmup_epochs: 1}}",
            "neither the shape thor nor warmup_epochs",
        ),
        ("{damping: 0.03, damping_schedule: thor}", "neither the shape thor nor warmup_epochs"),
        ("{precondition: inverse, damping_decay: 0.5}", "there is none; give damping"),
        ("{damping: 0.03, relative_damping: 0.01}", "has both damping and relative_damping; give one of them"),
        ("{damping: 0.03, beta1: 0.8}", "precondition = inverse; leave it out, or leave out the damping"),
        ("{precondition: inverse, beta1: 0.8}", "beta1 means nothing with precondition = inverse; leave it out"),
        ("{damping_decay: 0.5}", "means nothing with precondition = eigenbasis; leave it out, or give precondition"),
    ],
)
def test_bad_damping(settings, message):
    with pytest.raises(UserError) as caught:
        load_config(None, ["--thor", settings])
    assert message in str(caught.value)
