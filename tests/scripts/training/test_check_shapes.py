"""Data, network and loss that do not fit are told before anything is trained."""

import re

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from scripts.data.factory import open_feeds
from scripts.settings.yaml_config import validate
from scripts.training import dry_run
from scripts.training.check_shapes import check_fit
from scripts.training.loop import train
from scripts.training.networks import build_loss, build_network
from tests.scripts.data.samples import write_cifar
from tests.scripts.training.test_loop import quiet
from tests.support.tiny_runs import write_set
from thor.runtime.errors import UserError


class TwoHeads(nn.Cell):
    """Scores, and features beside them."""

    def __init__(self):
        super().__init__()
        self.flat, self.scores = nn.Flatten(), nn.Dense(784, 10)

    def construct(self, images):
        features = self.flat(images)
        return self.scores(features), features


def settings_for(tmp_path, data="fashion_mnist", **values):
    folder = write_set(tmp_path / data) if data == "fashion_mnist" else write_cifar(tmp_path / data, data)
    base = {"optimizer": "momentum", "device": "CPU", "batch_size": 4, "out": str(tmp_path / "run")}
    return validate({**base, "data": {"name": data, "folder": str(folder)}, **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"data": "cifar10", "network": "smallconv"},
            "network smallconv does not take an example of data.name = cifar10, of shape (1, 3, 32, 32): take another "
            "network, or give its sizes in network_options (such as --network_options.in_channels 3). It says: ",
        ),
        (
            {"data": "cifar100", "network": "resnet8"},
            "network resnet8 has 10 outputs, and data.name = cifar100 has 98 classes: give  "
            "--network_options.num_classes 98, or another network",
        ),
        (
            {"network": "lenet5", "loss": "squared_error"},
            "loss = squared_error does not take outputs of shape (1, 10), which network lenet5 makes of an example, "
            "with targets of shape (1, 1, 28, 28)",
        ),
        (
            {"network": "tests.scripts.training.test_check_shapes:TwoHeads"},
            "network tests.scripts.training.test_check_shapes:TwoHeads returns 2 outputs in a tuple, and loss = "
            "cross_entropy takes one tensor: give  --network module:callable  with a Cell that returns only the output "
            "to train on, such as  return self.net(x)[0]",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_cure(tmp_path, values, message):
    settings = settings_for(tmp_path, **values)
    for begin in (lambda: train(settings, console=quiet()), lambda: dry_run.show(settings, quiet())):
        with pytest.raises(UserError, match=re.escape(message)) as caught:
            begin()
        assert "\n" not in str(caught.value)
    assert ms.get_context("mode") == ms.GRAPH_MODE


def test_a_look_changes_nothing(tmp_path):
    settings = settings_for(tmp_path, network="resnet8", network_options={"in_channels": 1})
    feeds, network = open_feeds(settings), build_network(settings)
    network.set_train()
    before = {parameter.name: parameter.asnumpy() for parameter in network.get_parameters()}
    assert any("moving_mean" in name for name in before)
    check_fit(settings, feeds, network, build_loss(settings))
    assert all(np.array_equal(before[each.name], each.asnumpy()) for each in network.get_parameters())
    assert all(cell.training for _, cell in network.cells_and_names() if isinstance(cell, nn.BatchNorm2d))
