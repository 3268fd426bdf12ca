import gzip

import numpy as np
import pytest

from scripts.data.fashion_mnist import load
from scripts.data.idx import read_images, read_labels
from tests.support.tiny_runs import write_idx, write_set
from thor.runtime.errors import UserError


def test_values_come_back(tmp_path):
    images = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    write_idx(tmp_path / "images.gz", images)
    assert np.array_equal(read_images(tmp_path / "images.gz"), images)
    write_idx(tmp_path / "labels.gz", np.array([3, 1]))
    assert read_labels(tmp_path / "labels.gz").tolist() == [3, 1]


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"labels\.gz: no such file"):
        read_labels(tmp_path / "labels.gz")


def test_file_that_is_cut_off_is_named(tmp_path):
    path = tmp_path / "images.gz"
    write_idx(path, np.random.default_rng(0).integers(0, 255, (20, 28, 28)))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(UserError, match=r"images\.gz: truncated, the gzip stream"):
        read_images(path)


def test_content_shorter_than_its_header_says(tmp_path):
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 5, 1, 2])))
    with pytest.raises(UserError, match="truncated, its header announces 13 bytes and it has 10"):
        read_labels(path)


@pytest.mark.parametrize("content, holds", [(bytes([0, 0, 8, 1, 0, 0, 0, 0]), "labels"), (b"", "something else")])
def test_mislabelled_file_is_named(tmp_path, content, holds):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match=rf"images\.gz: expected a file of images, and it holds {holds}"):
        read_images(path)


def test_no_gzip(tmp_path):
    (tmp_path / "labels.gz").write_text("<html>not found</html>")
    with pytest.raises(UserError, match="not a sound gzip file"):
        read_labels(tmp_path / "labels.gz")


def test_images_and_labels_must_be_as_many(tmp_path):
    folder = write_set(tmp_path)
    write_idx(folder / "train-labels-idx1-ubyte.gz", np.zeros(7))
    with pytest.raises(UserError, match="has 7 labels for 80 images"):
        load(folder, "train")


def test_labels_must_be_classes(tmp_path):
    folder = write_set(tmp_path, test=3)
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", np.array([0, 10, 1]))
    with pytest.raises(UserError, match="labels must be 0 to 9, and one is 10"):
        load(folder, "test")
