"""`--init`: a run starts from the weights of a file or of another run, as far as they fit."""

import io
import shutil

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from rich.console import Console

from scripts.run_folder.initial_weights import find_weights, take_weights
from scripts.training import dry_run
from scripts.training.loop import train
from tests.scripts.training.test_loop import last_tensors, quiet
from tests.support.tiny_runs import tiny_settings
from thor.runtime.errors import UserError

SLOW_RATE = {"learning_rate": 1e-9}  # the weights stay what they were at the start


def network(classes=3):
    return nn.SequentialCell(nn.Dense(4, 5), nn.BatchNorm1d(5), nn.Dense(5, classes))


def values_of(net):
    return {parameter.name: parameter.asnumpy().copy() for parameter in net.get_parameters()}


def test_a_head_of_another_size_keeps_its_initial_values(tmp_path):
    old, new = network(), network(classes=7)
    for parameter in old.get_parameters():
        parameter.set_data(ms.Tensor(np.full(parameter.shape, 2.0, np.float32)))
    ms.save_checkpoint([{"name": p.name, "data": p} for p in old.get_parameters()], str(tmp_path / "w.ckpt"))
    before = values_of(new)
    fitted = take_weights(str(tmp_path / "w.ckpt"), new)
    for name, value in values_of(new).items():
        np.testing.assert_array_equal(value, before[name] if name.startswith("2.") else 2.0, err_msg=name)
    assert fitted.other_shape == ["2.weight (7, 5), there (3, 5)", "2.bias (7,), there (3,)"]
    assert len(fitted.taken) == 6 and "1.moving_mean (5,)" in fitted.taken


def test_what_the_file_lacks_and_what_the_network_lacks_is_named(tmp_path):
    tensors = {"0.weight": (5, 4), "head.weight": (2, 2), "ema.0.weight": (5, 4), "moments.0.weight": (5, 4)}
    tensors |= {"global_step": (1,), "thor.step": (1,), "adafactor_row.0.weight+3": (4, 5)}
    saved = [{"name": name, "data": ms.Tensor(np.ones(shape, np.float16))} for name, shape in tensors.items()]
    ms.save_checkpoint(saved, str(tmp_path / "w.ckpt"))
    net = network()
    lines = take_weights(str(tmp_path / "w.ckpt"), net).lines()
    assert lines[0] == f"init: 1 of the network's 8 tensors are from {tmp_path / 'w.ckpt'}: 0.weight (5, 4)"
    assert lines[1].startswith("init: not there, so left at their initial values: 0.bias (5,); 1.")
    assert lines[2:] == ["init: there, but not in the network: head.weight (2, 2)"]
    assert net[0].weight.dtype == ms.float32 and (net[0].weight.asnumpy() == 1).all()


def test_nothing_that_fits_is_refused(tmp_path):
    ms.save_checkpoint(
        [{"name": "fc.weight", "data": ms.Tensor(np.ones((2, 3), np.float32))}], str(tmp_path / "w.ckpt")
    )
    with pytest.raises(UserError) as caught:
        take_weights(str(tmp_path / "w.ckpt"), network())
    assert "fits the network, whose tensors are 0.weight (5, 4); 0.bias (5,); 1." in str(caught.value)
    assert str(caught.value).endswith("the file has fc.weight (2, 3)")


def test_what_is_no_weights_is_refused(tmp_path):
    with pytest.raises(UserError, match="init = nowhere: no such file or folder; give a checkpoint file"):
        find_weights("nowhere")
    with pytest.raises(UserError, match="no run with a checkpoint is in this folder"):
        find_weights(str(tmp_path))
    (tmp_path / "c.ckpt").write_text("no tensors")
    with pytest.raises(UserError, match=r"c\.ckpt: "):
        take_weights(str(tmp_path / "c.ckpt"), network())


def test_a_file_that_no_run_has_written_is_taken_whatever_stands_beside_it(tmp_path):
    """Many libraries describe weights in a JSON file of the same name; its words are not those of a run."""
    ms.save_checkpoint([{"name": p.name, "data": p} for p in network().get_parameters()], str(tmp_path / "w.ckpt"))
    (tmp_path / "w.json").write_text('{"source": "zoo", "top1": 0.76}')
    assert len(take_weights(str(tmp_path / "w.ckpt"), network()).taken) == 8


@pytest.fixture(scope="module")
def donor(tmp_path_factory):
    """A run with averages, of which only the last checkpoint is left."""
    folder = tmp_path_factory.mktemp("donor")
    run = train(tiny_settings(folder, "adam", epochs=1, ema=0.5), console=quiet())
    (run.folder / "checkpoints" / "best.ckpt").unlink()
    return run.folder


@pytest.mark.parametrize("optimizer", ["momentum", "thor"])
def test_a_run_starts_from_the_weights_of_another(tmp_path, donor, optimizer):
    console = Console(file=io.StringIO(), width=100)
    settings = tiny_settings(tmp_path, optimizer, epochs=1, init=str(donor), ema=0.5, **{optimizer: SLOW_RATE})
    run = train(settings, console=console)
    text = console.file.getvalue()
    assert f"init: 8 of the network's 8 tensors are from {donor}/checkpoints/step-00000010.ckpt: " in text
    assert "init: there" not in text
    expected, found = last_tensors(donor), last_tensors(run.folder)
    for name in ("encoder.0.weight", "decoder.0.bias"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
        np.testing.assert_allclose(found[f"ema.{name}"], expected[name], atol=1e-5)
        assert np.abs(expected[name] - expected[f"ema.{name}"]).max() > 1e-4


def test_a_resumed_run_takes_no_other_weights(tmp_path, donor):
    own = {"momentum": {"learning_rate": 0.01, "schedule": "constant"}}
    with_init = tiny_settings(tmp_path, "momentum", epochs=1, init=str(donor), **own)
    train(with_init, console=quiet())
    other = tmp_path / "other"
    shutil.copytree(donor, other)
    for init in (str(other), None):
        with pytest.raises(UserError, match=r"init = .*other: .* give --init .*donor" if init else "init: .* -> None"):
            train(with_init.model_copy(update={"init": init}), resume="auto", console=quiet())
    console = Console(file=io.StringIO(), width=100)
    longer = with_init.model_copy(update={"epochs": 2})
    assert train(longer, resume="auto", console=console).finished
    assert "init" not in console.file.getvalue()


def test_dry_run_tells_what_fits(tmp_path, donor):
    console = Console(file=io.StringIO(), width=100)
    assert not dry_run.show(tiny_settings(tmp_path, "adam", init=str(donor)), console).notes
    assert "init: 8 of the network's 8 tensors are from" in console.file.getvalue()
    plan = dry_run.show(tiny_settings(tmp_path, "adam", init="nowhere"), console)
    assert plan.notes == ["init = nowhere: no such file or folder; give a checkpoint file, or the folder of a run"]
