"""The ResNet-50 demonstration, small: it learns twenty photographs by heart, is killed, resumes, and is exported."""

import json
import signal
import subprocess
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from scripts import eval, export
from scripts.data import imagenet_samples
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.settings.yaml_config import load_config, save_config
from scripts.training.loop import train
from tests.scripts.training.test_killed import KILLED
from tests.scripts.training.test_loop import quiet
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.jobs]


def test_photographs_are_learnt_by_heart_across_a_kill(tmp_path):
    photographs = imagenet_samples.arrange(tmp_path / "imagenet")
    # ResNet-8: ResNet-18 passes too, but compiles for over a minute on two cores.
    small = ["--network", "resnet8", "--network_options", "{num_classes: 19}", "--data.size", "32"]
    small += ["--data.folder", str(photographs), "--epochs", "60", "--eval_every", "10"]
    small += ["--thor.interval", "1", "--thor.factor_interval", "1"]  # no plain step: one graph fewer to compile
    settings = load_config(
        ROOT / "scripts" / "config" / "resnet50_samples_cpu.yaml", [*small, "--out", str(tmp_path / "run")]
    )
    save_config(settings, tmp_path / "config.yaml")
    command = [sys.executable, "-c", KILLED, "step", "5", str(tmp_path / "config.yaml")]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300).returncode == -signal.SIGKILL
    run = train(settings, resume="auto", console=quiet())
    steps = [line["step"] for line in read_metrics(run.folder) if line["kind"] == "step"]
    assert steps == list(range(1, 61))
    assert eval.main([str(run.folder), "--out", str(tmp_path / "eval.json")]) == 0
    found = json.loads((tmp_path / "eval.json").read_text())
    assert (found["test_accuracy"], found["count"]) == (1.0, 20)
    assert export.main([str(run.folder), "--out", str(tmp_path / "net.mindir")]) == 0
    outputs = nn.GraphCell(ms.load(str(tmp_path / "net.mindir")))(ms.Tensor(np.zeros((1, 3, 32, 32), np.float32)))
    assert outputs.shape == (1, 19)
