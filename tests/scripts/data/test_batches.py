import numpy as np
import pytest

from scripts.data.batches import Batches, normalise
from scripts.data.source import IGNORED


def batches(**options):
    images = np.random.default_rng(0).integers(0, 256, (50, 28, 28)).astype(np.uint8)
    return Batches(images=images, labels=np.arange(50, dtype=np.uint8) % 10, batch_size=8, **options)


def test_an_epoch_visits_each_example_once_and_drops_the_rest():
    plan = batches(seed=1)
    assert len(plan) == 6 and len(list(plan.epoch(0))) == 6
    assert sorted(plan.order(0)) == list(range(50))


def test_order_depends_on_seed_and_epoch_alone():
    assert np.array_equal(batches(seed=1).order(3), batches(seed=1).order(3))
    assert not np.array_equal(batches(seed=1).order(3), batches(seed=1).order(4))
    assert not np.array_equal(batches(seed=1).order(3), batches(seed=2).order(3))


@pytest.mark.parametrize("augmentation", [{}, {"crop": 3, "flip": True}])
def test_starting_in_mid_epoch_gives_the_same_batches(augmentation):
    plan = batches(seed=5, **augmentation)
    whole = list(plan.epoch(2))
    for start in (1, 4, 6):
        rest = list(plan.epoch(2, start))
        assert len(rest) == 6 - start
        for (images, labels), (expected_images, expected_labels) in zip(rest, whole[start:], strict=True):
            assert np.array_equal(images, expected_images) and np.array_equal(labels, expected_labels)


def test_augmentation_belongs_to_the_example_not_to_its_batch():
    small, large = batches(crop=2, flip=True), batches(crop=2, flip=True)
    object.__setattr__(large, "batch_size", 25)
    by_small = np.concatenate([images for images, _ in small.epoch(0)])
    by_large = np.concatenate([images for images, _ in large.epoch(0)])
    assert np.array_equal(by_small, by_large[: len(by_small)])


def test_crop_shifts_and_flip_mirrors():
    plan = batches(crop=2, flip=True)
    image = plan.images[:1]
    unmoved = plan._augmented(image, np.array([[2, 2, 0]]))
    assert np.array_equal(unmoved, image)
    assert np.array_equal(plan._augmented(image, np.array([[2, 2, 1]])), image[:, :, ::-1])
    shifted = plan._augmented(image, np.array([[4, 2, 0]]))
    assert np.array_equal(shifted[0, :-2], image[0, 2:]) and not shifted[0, -2:].any()


def test_colour_images_are_changed_alike_in_every_channel():
    grey = batches(crop=2, flip=True, seed=4)
    colour = Batches(
        images=np.stack([grey.images, 255 - grey.images, grey.images], axis=1),
        labels=grey.labels, batch_size=8, crop=2, flip=True, seed=4,
    )  # fmt: skip
    inside = np.s_[:, :, 4:-4, 4:-4]  # where no zeros come in
    for (images, _), (expected, _) in zip(colour.epoch(1), grey.epoch(1), strict=True):
        assert images.shape == (8, 3, 28, 28)
        assert np.array_equal(images[:, :1], expected) and np.array_equal(images[:, 2:], expected)
        np.testing.assert_allclose(images[inside][:, 1], 1 - expected[inside][:, 0], atol=1e-6)


def test_ranks_cut_one_global_batch():
    whole = list(batches(seed=2, crop=2, flip=True).epoch(1))
    parts = []
    for rank in (0, 1):
        part = batches(seed=2, crop=2, flip=True, rank=rank, ranks=2)
        object.__setattr__(part, "batch_size", 4)
        parts.append(list(part.epoch(1)))
    for (images, labels), *shares in zip(whole, *parts, strict=True):
        assert np.array_equal(images, np.concatenate([share[0] for share in shares]))
        assert np.array_equal(labels, np.concatenate([share[1] for share in shares]))


def test_evaluation_sees_every_image_unchanged_and_fills_the_last_batch():
    plan = batches(crop=2, flip=True, training=False)
    images, labels = (np.concatenate(parts) for parts in zip(*plan.epoch(0), strict=True))
    assert len(plan) == 7 and len(images) == 56
    assert np.array_equal(images[:50], normalise(plan.images, 0.0, 1.0))
    assert np.array_equal(labels[:50], plan.labels) and (labels[50:] == IGNORED).all()


def test_normalise_by_channel():
    images = np.full((2, 3, 1, 1), 255, np.uint8)
    found = normalise(images, (0.5, 0.0, 1.0), (0.5, 0.25, 2.0))
    np.testing.assert_allclose(found[1, :, 0, 0], [1.0, 4.0, 0.0], atol=1e-6)


def test_normalise():
    images = np.array([[[0, 255]]], np.uint8)
    np.testing.assert_allclose(normalise(images, 0.25, 0.5), [[[[-0.5, 1.5]]]], rtol=1e-6)
    assert normalise(images, 0.25, 0.5).dtype == np.float32
