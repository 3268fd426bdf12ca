"""What the command line names, and the message where it names nothing."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from thor.cli import network_argument
from thor.runtime.errors import UserError

MODULE = """
import numpy as np
from mindspore import nn

def build():
    return nn.Dense(4, 3)

def sized(num_classes=5):
    return nn.Dense(4, num_classes)

def broken():
    raise RuntimeError("no weights here")

def number():
    return 3

ready = nn.Dense(2, 2)
three = 3

class Loss(nn.Cell):
    def construct(self, output, y):
        return (output - y).mean()

def batches():
    for _ in range(5):
        yield np.ones((2, 4), np.float32), np.zeros(2, np.int32)

def singles():
    yield np.ones((2, 4), np.float32)

def nothing():
    return iter(())
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """A module, a package and a broken module in a folder of their own, which is the current one."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "tinynet.py").write_text(MODULE)
    (folder / "netpack").mkdir()
    (folder / "netpack" / "__init__.py").write_text("")
    (folder / "netpack" / "resnet.py").write_text(
        "from mindspore import nn\n\ndef make():\n    return nn.Dense(1, 1)\n"
    )
    (folder / "spoilt.py").write_text("x = (\n")
    (folder / "lacking.py").write_text("import surely_not_installed\n")
    return folder


@pytest.fixture(autouse=True)
def _here(module, monkeypatch):
    monkeypatch.chdir(module)
    monkeypatch.setattr(network_argument.sys, "path", list(network_argument.sys.path))


def test_a_network_is_what_its_callable_makes():
    assert network_argument.build_network("tinynet:build", None).out_channels == 3
    assert network_argument.build_network("tinynet:build", 7).out_channels == 3  # it takes no num_classes
    assert network_argument.build_network("tinynet:sized", 7).out_channels == 7
    assert network_argument.build_network("tinynet:sized", None).out_channels == 5
    assert network_argument.build_network("tinynet:ready", None).out_channels == 2
    assert network_argument.build_network("netpack.resnet:make", None).out_channels == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tinynet", ("'tinynet'", "module:callable", "models.resnet:resnet50")),
        (":build", ("module:callable",)),
        ("tinynet:", ("module:callable",)),
        ("tinynett:build", ("no module 'tinynett'", "did you mean 'tinynet'?", "run thor where it can be imported")),
        ("netpak.resnet:make", ("no module 'netpak'", "did you mean 'netpack'?")),
        ("netpack.resnot:make", ("no module 'netpack.resnot'", "did you mean 'resnet'?")),
        ("qqqqqq:make", ("no module 'qqqqqq'; run",)),
        ("tinynet:biuld", ("module tinynet has no 'biuld'", "did you mean 'build'?")),
        ("tinynet:zzzzzz", ("module tinynet has no 'zzzzzz'",)),
        ("tinynet:three", ("tinynet:three is a int, not a callable",)),
        ("tinynet:number", ("tinynet:number() made a int", "mindspore.nn.Cell")),
        ("tinynet:broken", ("tinynet:broken() failed: RuntimeError: no weights here",)),
        ("spoilt:x", ("spoilt cannot be imported: SyntaxError",)),
        ("lacking:x", ("lacking: its import needs the module 'surely_not_installed'", "not installed")),
    ],
)
def test_a_name_that_is_none_is_answered_with_the_nearest(name, words):
    with pytest.raises(UserError) as caught:
        network_argument.build_network(name, None)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_losses():
    output, goal = Tensor(np.full((2, 3), 2.0, np.float32)), Tensor(np.zeros((2, 3), np.float32))
    assert float(network_argument.build_loss("squared-error")(output, goal).asnumpy()) == 12.0
    assert isinstance(network_argument.build_loss("cross-entropy"), nn.CrossEntropyLoss)
    assert isinstance(network_argument.build_loss("tinynet:Loss"), nn.Cell)
    with pytest.raises(UserError, match="--loss 'mse': must be one of cross-entropy, squared-error, or module:call"):
        network_argument.build_loss("mse")
    with pytest.raises(UserError, match="--loss tinynet:three is a int, not a callable"):
        network_argument.build_loss("tinynet:three")


def batches(data, shape=None, count=3, reconstruct=False):
    source, stream = network_argument.build_batches(data, shape, 10, count, 2, reconstruct, 0)
    return source, list(stream())


def test_batches_from_a_shape_or_a_callable():
    source, found = batches(None, (4, 2))
    assert (source, len(found), found[0][0].shape, found[0][1].shape) == ("synthetic", 3, (4, 2), (4,))
    _, found = batches(None, (4, 2), reconstruct=True)
    assert found[0][0] is found[0][1]
    source, found = batches("tinynet:batches")
    assert (source, len(found)) == ("tinynet:batches", 3)
    assert all(isinstance(item, Tensor) for item in found[0])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, ("--data", "--input", "8,3,224,224")),
        ("tinynet:three", ("--data tinynet:three is a int, not a callable",)),
        ("tinynet:singles", ("--data tinynet:singles must make batches (inputs, targets)", "ndarray")),
        ("tinynet:batchs", ("did you mean 'batches'?",)),
        ("fashion-mnist", ("--data fashion-mnist needs the readers of the project's checkout", "module:callable")),
    ],
)
def test_data_that_are_none_are_refused(data, words, monkeypatch):
    def elsewhere(name):
        raise ImportError(name)

    if data == "fashion-mnist":
        monkeypatch.setattr(network_argument.importlib, "import_module", elsewhere)
    with pytest.raises(UserError) as caught:
        batches(data)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_fashion_mnist_is_fed_as_training_feeds_it(tmp_path, monkeypatch):
    from scripts.data import fashion_mnist
    from scripts.data.factory import open_feeds
    from scripts.settings.yaml_config import validate
    from tests.support.tiny_runs import write_set

    folder = write_set(tmp_path / "set", train=12)
    monkeypatch.setattr(fashion_mnist, "resolve", lambda *_: folder)
    source, found = batches("fashion-mnist", count=99)
    assert source == "fashion-mnist" and len(found) == 6  # no more than there are
    x, y = found[0]
    assert x.shape == (2, 1, 28, 28) and y.shape == (2,)
    images = np.concatenate([x.asnumpy() for x, _ in found]).reshape(12, -1)
    assert len(np.unique(images, axis=0)) == 12
    trained = next(iter(open_feeds(validate({"data": {"folder": str(folder)}, "batch_size": 12})).train.epoch(0)))[0]
    np.testing.assert_allclose(np.sort(images.sum(1)), np.sort(trained.reshape(12, -1).sum(1)), rtol=1e-4)
    _, own = batches("fashion-mnist", count=99, reconstruct=True)
    assert 0 <= own[0][0].asnumpy().min() and own[0][0].asnumpy().max() <= 1, "as pixels are reproduced"
