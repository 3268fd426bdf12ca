import numpy as np
import pytest

from scripts.data.batches import Batches, normalise


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


def test_normalise():
    images = np.array([[[0, 255]]], np.uint8)
    np.testing.assert_allclose(normalise(images, 0.25, 0.5), [[[[-0.5, 1.5]]]], rtol=1e-6)
    assert normalise(images, 0.25, 0.5).dtype == np.float32
