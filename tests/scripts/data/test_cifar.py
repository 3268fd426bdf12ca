import hashlib
import io
import logging
import tarfile

import numpy as np
import pytest

from scripts.data import cifar, fetch
from scripts.data.batches import Batches, normalise
from tests.scripts.data.samples import cifar_samples, write_cifar
from thor.runtime.errors import UserError


@pytest.mark.parametrize("name, record", [("cifar10", 3073), ("cifar100", 3074)])
def test_real_images_come_back_from_the_binary_format(tmp_path, name, record):
    folder = write_cifar(tmp_path, name)
    assert (folder / cifar.FORMATS[name].test[0]).stat().st_size == 20 * record
    images, labels = cifar_samples(name)
    for part in ("train", "test"):
        found = cifar.load(name, folder, part)
        assert np.array_equal(found.images, images) and np.array_equal(found.labels, labels)
        assert found.images.shape == (20, 3, 32, 32) and found.images.dtype == np.uint8


def test_published_sizes():
    assert {name: sum(kind.images[file] for file in kind.train) for name, kind in cifar.FORMATS.items()} == {
        "cifar10": 50_000,
        "cifar100": 50_000,
    }
    assert all(kind.images[file] == 10_000 for kind in cifar.FORMATS.values() for file in kind.test)
    assert all(set(kind.images) == set(kind.files) for kind in cifar.FORMATS.values())


def test_batches_of_real_images_are_padded_cropped_and_mirrored(tmp_path):
    images, labels = cifar.load("cifar10", write_cifar(tmp_path, "cifar10"), "train")
    kind = cifar.FORMATS["cifar10"]
    plan = Batches(images=images, labels=labels, batch_size=5, seed=1, mean=kind.mean, std=kind.std, crop=4, flip=True)
    padded = np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)))
    seen = 0
    for (batch, classes), chosen in zip(plan.epoch(0), plan._order.batches(0), strict=True):
        assert np.array_equal(classes, labels[chosen])
        for image, index in zip(batch, chosen, strict=True):
            views = [padded[index, :, r : r + 32, c : c + 32] for r in range(9) for c in range(9)]
            views += [view[:, :, ::-1] for view in views]
            views = normalise(np.stack(views), kind.mean, kind.std)
            seen += any(np.array_equal(image, view) for view in views)
    assert seen == 20


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", r"data_batch_3\.bin: the file is empty"),
        (bytes(3073 * 4 - 1), r"data_batch_3\.bin: truncated, or no file of CIFAR-10: its 12291 bytes are no multiple"),
        (bytes(3073) + bytes([10]) + bytes(3072), r"data_batch_3\.bin: record 1 has the class 10, and CIFAR-10 has 0"),
    ],
)
def test_bad_file_is_named(tmp_path, content, message):
    folder = write_cifar(tmp_path, "cifar10")
    (folder / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(UserError, match=message):
        cifar.load("cifar10", folder, "train")
    assert len(cifar.load("cifar10", folder, "test").labels) == 20


def test_other_set_in_its_place_is_noticed(tmp_path):
    """20 records of CIFAR-100 are no whole number of CIFAR-10's."""
    other = write_cifar(tmp_path / "cifar100", "cifar100") / "test.bin"
    folder = write_cifar(tmp_path / "cifar10", "cifar10")
    (folder / "test_batch.bin").write_bytes(other.read_bytes())
    with pytest.raises(UserError, match=r"test_batch\.bin: truncated, or no file of CIFAR-10"):
        cifar.load("cifar10", folder, "test")


def test_other_number_of_images_than_published_is_told(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        cifar.load("cifar100", write_cifar(tmp_path, "cifar100"), "test")
    assert "test.bin: has 20 images, and the published file has 10000" in caplog.text


def test_option_before_variable_before_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CIFAR10_DIR", raising=False)
    cache = write_cifar(fetch.cache_folder("cifar10"), "cifar10")
    variable, option = (write_cifar(tmp_path / name, "cifar10") for name in ("variable", "option"))
    assert cifar.resolve("cifar10") == cache
    monkeypatch.setenv("CIFAR10_DIR", str(variable))
    assert cifar.resolve("cifar10") == variable
    assert cifar.resolve("cifar10", option) == option
    (option / "data_batch_2.bin").unlink()
    with pytest.raises(UserError, match=r"the option data\.folder\) lacks data_batch_2\.bin"):
        cifar.resolve("cifar10", option)


def test_archive_is_checked_and_unpacked_into_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CIFAR100_DIR", raising=False)
    folder = write_cifar(tmp_path / "cifar-100-binary", "cifar100")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(folder, "cifar-100-binary")
    asked = []

    def urlopen(url, timeout):
        asked.append(url)
        return io.BytesIO(packed.getvalue())

    monkeypatch.setattr(fetch.urllib.request, "urlopen", urlopen)
    with pytest.raises(UserError) as caught:
        cifar.resolve("cifar100")
    found = hashlib.md5(packed.getvalue()).hexdigest()
    assert f"the MD5 sum is {found}, and should be 03b5dce01913d631647c71ecec9e9cb8" in str(caught.value)
    assert "export CIFAR100_DIR=/that/folder/cifar-100-binary" in str(caught.value)
    assert asked == ["https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"]

    right = {**cifar.FORMATS["cifar100"].__dict__, "md5": found}
    monkeypatch.setitem(cifar.FORMATS, "cifar100", cifar.Format(**right))
    cache = cifar.resolve("cifar100")
    assert cache == fetch.cache_folder("cifar100")
    assert (cache / "train.bin").read_bytes() == (folder / "train.bin").read_bytes()
    assert cifar.resolve("cifar100") == cache and len(asked) == 2
