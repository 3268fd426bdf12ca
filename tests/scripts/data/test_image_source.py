import logging
import threading

import numpy as np
import pytest

from scripts.data import imagenet_folder, imagenet_samples, images
from scripts.data.image_source import ImageSource
from scripts.data.source import IGNORED
from thor.runtime.errors import UserError


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return imagenet_samples.arrange(tmp_path_factory.mktemp("imagenet"))


@pytest.fixture
def damaged(tmp_path):
    """The photographs with three bad files: empty, truncated, and something else."""
    root = imagenet_samples.arrange(tmp_path) / "train"
    files = sorted(root.rglob("*.JPEG"))
    files[2].write_bytes(b"")
    files[3].write_bytes(files[3].read_bytes()[:5000])
    files[11].write_text("<html>")
    return root


def source(root, **options):
    options = {"batch_size": 4, "size": 32, "workers": 2, **options}
    return ImageSource(collection=imagenet_folder.scan(root), **options)


def _same(found, expected):
    assert len(found) == len(expected)
    for (images_, labels), (expected_images, expected_labels) in zip(found, expected, strict=True):
        assert np.array_equal(images_, expected_images) and np.array_equal(labels, expected_labels)


def test_batches_hold_the_views_of_the_ordered_images(photographs):
    plan = source(photographs / "train", seed=3)
    listing = plan.collection
    batches = list(plan.epoch(1))
    assert len(batches) == len(plan) == 5
    for (pixels, labels), chosen in zip(batches, plan._order.batches(1), strict=True):
        assert pixels.shape == (4, 3, 32, 32) and pixels.dtype == np.float32 and labels.dtype == np.int32
        assert np.array_equal(labels, listing.labels[chosen])
    index = int(next(plan._order.batches(1))[2])
    random = np.random.default_rng([3, 1, 1, index])
    view = images.training_view(images.decode(listing.root / listing.paths[index]), 32, random)
    expected = (view / 255 - images.MEAN) / images.STD
    np.testing.assert_allclose(batches[0][0][2], expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-5)


def test_batches_depend_on_seed_and_epoch_and_a_start_only_skips(photographs):
    whole = list(source(photographs / "train", seed=3).epoch(2))
    _same(list(source(photographs / "train", seed=3, workers=1).epoch(2)), whole)
    _same(list(source(photographs / "train", seed=3).epoch(2, 3)), whole[3:])
    other = next(source(photographs / "train", seed=4).epoch(2))
    assert not np.array_equal(other[0], whole[0][0])
    again = source(photographs / "train", seed=3)
    assert not np.array_equal(next(again.epoch(1))[0], whole[0][0])


def test_ranks_share_a_global_batch(photographs):
    whole = list(source(photographs / "train", seed=1).epoch(0))
    parts = [list(source(photographs / "train", seed=1, batch_size=2, rank=rank, ranks=2).epoch(0)) for rank in (0, 1)]
    joined = [tuple(np.concatenate(pair) for pair in zip(*shares, strict=True)) for shares in zip(*parts, strict=True)]
    _same(joined, whole)


def test_evaluation_sees_every_image_once(photographs):
    plan = source(photographs / "val", training=False, batch_size=6)
    pixels, labels = (np.concatenate(part) for part in zip(*plan.epoch(0), strict=True))
    assert len(labels) == 24 and labels[:20].tolist() == plan.collection.labels.tolist()
    assert (labels[20:] == IGNORED).all()
    _same(list(plan.epoch(5)), list(plan.epoch(0)))
    view = images.evaluation_view(images.decode(plan.collection.root / plan.collection.paths[7]), 32)
    np.testing.assert_allclose(pixels[7], ((view / 255 - images.MEAN) / images.STD).transpose(2, 0, 1), atol=1e-5)


def test_unreadable_images_are_skipped_counted_and_reported(damaged, caplog):
    plan = source(damaged, seed=2)
    with caplog.at_level(logging.WARNING):
        batches = list(plan.epoch(0))
        list(plan.epoch(1))
    reasons = sorted(plan.skipped.values())
    assert len(reasons) == 3 and reasons[2] == "the file is empty"
    assert "truncated" in reasons[0] and "not an image" in reasons[1]
    assert sum("skipped" in record.message for record in caplog.records) == 3  # once each, in two epochs
    assert sorted(plan.skipped) == [2, 3, 11]
    assert sum(str(damaged) in record.message for record in caplog.records) == 3

    labels = np.concatenate([labels for _, labels in batches])
    order = np.concatenate(list(plan._order.batches(0)))
    replaced = {2: 4, 3: 4, 11: 12}  # the next readable one
    expected = [plan.collection.labels[replaced.get(index, index)] for index in order]
    assert labels.tolist() == expected
    _same(list(source(damaged, seed=2).epoch(0, 2)), batches[2:])


def test_unreadable_images_are_not_counted_in_evaluation(damaged):
    plan = source(damaged, training=False)
    labels = np.concatenate([labels for _, labels in plan.epoch(0)])
    assert np.flatnonzero(labels == IGNORED).tolist() == [2, 3, 11]
    assert len(plan.skipped) == 3


def test_strict_ends_the_run_and_names_the_file(damaged):
    bad = sorted(damaged.rglob("*.JPEG"))[2]
    with pytest.raises(UserError, match=rf"{bad}: the file is empty"):
        list(source(damaged, strict=True, training=False).epoch(0))


@pytest.mark.parametrize("training", [True, False])
def test_a_set_that_cannot_be_read_ends_the_run(training, tmp_path):
    root = imagenet_samples.arrange(tmp_path) / "train"
    plan = source(root, training=training)
    for path in root.rglob("*.JPEG"):
        path.unlink()
    with pytest.raises(UserError, match=r"20 of 20 images cannot be read, such as .*JPEG: no such file"):
        list(plan.epoch(0))


def test_more_than_a_tenth_unreadable_ends_the_run(tmp_path):
    """22 of 100: more than a few, and more than a tenth; threads may find the last two at once. 20 are skipped."""
    (tmp_path / "n00000001").mkdir(parents=True)
    good = imagenet_samples.samples("imagenet")[0][0].read_bytes()
    for number in range(100):
        (tmp_path / "n00000001" / f"{number:03d}.JPEG").write_bytes(b"" if number < 20 else good)
    list(source(tmp_path, training=False, batch_size=50).epoch(0))
    for number in (20, 21):
        (tmp_path / "n00000001" / f"{number:03d}.JPEG").write_bytes(b"")
    with pytest.raises(UserError, match="2[12] of 100 images cannot be read"):
        list(source(tmp_path, training=False, batch_size=50).epoch(0))


def test_what_a_rank_cannot_read_is_measured_by_its_share(tmp_path):
    """Each of four ranks reads 100 images, of which 25 are empty: a sixteenth of 400, and a quarter of what it sees."""
    (tmp_path / "n00000001").mkdir(parents=True)
    good = imagenet_samples.samples("imagenet")[0][0].read_bytes()
    for number in range(400):
        (tmp_path / "n00000001" / f"{number:03d}.JPEG").write_bytes(good if number % 4 else b"")
    for rank in range(4):
        with pytest.raises(UserError, match="2[1-5] of 100 images cannot be read"):
            list(source(tmp_path, training=False, batch_size=50, rank=rank, ranks=4).epoch(0))


def test_few_unreadable_ones_an_epoch_do_not_add_up_to_too_many(tmp_path):
    """A rank of three meets some eight of the 24 empty files in each epoch, and all of them after some."""
    (tmp_path / "n00000001").mkdir(parents=True)
    good = imagenet_samples.samples("imagenet")[0][0].read_bytes()
    for number in range(120):
        (tmp_path / "n00000001" / f"{number:03d}.JPEG").write_bytes(good if number % 5 else b"")
    plan = source(tmp_path, batch_size=10, ranks=3, augment=False)
    for epoch in range(6):
        list(plan.epoch(epoch))
    assert len(plan.skipped) > 20


def test_leaving_an_epoch_early_leaves_no_thread_behind(photographs):
    batches = source(photographs / "train").epoch(0)
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


@pytest.mark.parametrize("option", ["size", "workers"])
def test_impossible_settings_are_refused(photographs, option):
    with pytest.raises(UserError, match=f"{option} must be at least 1, and is 0"):
        source(photographs / "train", **{option: 0})
