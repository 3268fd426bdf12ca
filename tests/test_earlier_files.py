"""Checkpoints, profiles and run folders that version 0.1.0 wrote load as they are, and training goes on from them.

The files in tests/earlier_files hold tiny networks of tests/support. The losses and weights that follow the checkpoints
are those of 0.1.0 itself; another processor may round them differently: they are compared within float32's rounding.
"""

import json
import shutil

import mindspore as ms
import numpy as np
import pytest

import first_order
import thor
from scripts.run_folder.metrics_recorder import read_metrics
from scripts.settings.yaml_config import load_config
from scripts.training.loop import train
from tests.scripts.training.test_loop import quiet
from tests.support.networks import Mixed, Mlp, batch, images, make
from tests.support.paths import ROOT
from tests.support.tiny_runs import write_set
from thor.profile.profile_file import Profile
from thor.runtime.modes import in_mode

FILES = ROOT / "tests" / "earlier_files" / "0.1.0"
SETTINGS = {"interval": 4, "factor_interval": 2, "factor_decay": 0.9, "block_size": 3}


def dense(seed):
    net = Mlp(seed=seed)
    return net, *make(net, momentum=0.9, **SETTINGS), batch


def convolution(seed):
    net = Mixed(seed=seed)
    scale = thor.DynamicLossScale(initial=8.0, window=3)
    options = {"momentum": 0.9, "split": "block+rank", "rank": 2, "norms": True, "loss_scale": scale}
    return net, *make(net, **options, **SETTINGS), images


def adam(seed):
    net = Mlp(seed=seed)
    inner = first_order.Adam(net.trainable_params(), 0.01)
    return net, *make(net, lr=None, inner=inner, split="block", accumulate=2, **SETTINGS), batch


@pytest.fixture(autouse=True)
def _pynative():
    with in_mode(ms.PYNATIVE_MODE):
        yield


@pytest.mark.parametrize(
    ("name", "build", "first"),
    [("dense-mean", dense, 6), ("convolution-rank", convolution, 6), ("adam-block", adam, 12)],
)
def test_a_checkpoint_loads_bit_for_bit_and_training_goes_on(name, build, first):
    net, optimizer, step, make_batch = build(seed=5)  # not the weights of the checkpoint
    for part, cell in (("net", net), ("optimizer", optimizer)):
        stored = ms.load_checkpoint(str(FILES / f"{name}.{part}.ckpt"))
        assert ms.load_param_into_net(cell, stored) == ([], [])
        own = {p.name: p.asnumpy() for p in cell.get_parameters()}
        assert list(own) == list(stored)
        for key, value in stored.items():
            assert own[key].tobytes() == value.asnumpy().tobytes() and own[key].dtype == value.asnumpy().dtype, key
    wanted = np.load(FILES / f"{name}.npz")
    losses = [float(step(*make_batch(seed=k))) for k in range(first, first + 6)]
    np.testing.assert_allclose(losses, wanted["losses"], rtol=2e-5)
    for parameter in net.get_parameters():
        np.testing.assert_allclose(parameter.asnumpy(), wanted[f"after/{parameter.name}"], rtol=1e-4, atol=1e-5)


def test_a_profile_gives_the_same_plan():
    wanted = json.loads((FILES / "profile.expected.json").read_text())
    profile = Profile.load(FILES / "profile.json")
    assert profile.crossing().chosen == wanted["chosen"]
    assert profile.plan("block", 16).describe() == wanted["plan"]


@pytest.mark.parametrize("optimizer", ["thor", "adafactor"])
def test_a_run_folder_resumes_to_the_same_losses(optimizer, tmp_path):
    write_set(tmp_path / "data")
    folder = tmp_path / "run"
    shutil.copytree(FILES / f"run-{optimizer}", folder)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("FOLDER", str(tmp_path)))
    run = train(load_config(config, []), resume=True, console=quiet())
    assert run.finished and run.position.step == 20
    losses = [line["loss"] for line in read_metrics(folder) if line["kind"] == "step"]
    wanted = json.loads((FILES / f"run-{optimizer}.losses.json").read_text())
    assert losses[:14] == wanted[:14]  # written by 0.1.0
    np.testing.assert_allclose(losses[14:], wanted[14:], rtol=1e-5)
