import io

import numpy as np
import pytest
from PIL import Image

from scripts.data import imagenet_samples, images
from scripts.data.images import UnreadableError


def _encoded(array, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(array, **options).save(file, kind)
    return file.getvalue()


def test_real_photographs_decode():
    found = [images.decode(path) for path, _ in imagenet_samples.samples("imagenet")]
    assert len(found) == 20
    assert {image.mode for image in found} == {"RGB"}
    assert sorted({image.size for image in found}) == [(512, 512), (1024, 683)]


def test_grey_and_cmyk_become_rgb():
    """ImageNet has both, and a PNG that is called .JPEG."""
    grey = images.decode(_encoded(np.full((4, 6), 77, np.uint8)))
    assert np.array_equal(np.asarray(grey), np.full((4, 6, 3), 77))
    file = io.BytesIO()
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(file, "JPEG")
    red, green, blue = np.asarray(images.decode(file.getvalue()))[4, 4].astype(int)
    assert red < 30 and green > 150 and blue > 150


def test_unreadable_files_say_why(tmp_path):
    sample = imagenet_samples.samples("imagenet")[0][0].read_bytes()
    for content, message in [
        (b"", "the file is empty"),
        (sample[: len(sample) // 2], "truncated"),
        (b"<html>not found</html>", r"not an image \(first bytes 3c 68 74 6d\)"),
    ]:
        (tmp_path / "x.JPEG").write_bytes(content)
        with pytest.raises(UnreadableError, match=message):
            images.decode(tmp_path / "x.JPEG")
    with pytest.raises(UnreadableError, match="no such file"):
        images.decode(tmp_path / "absent.JPEG")


def test_damaged_bytes_give_an_image_or_a_reason():
    """Whatever is wrong with a file, no other exception comes out."""
    random, unreadable = np.random.default_rng(0), 0
    files = [path.read_bytes() for kind in ("imagenet", "cifar10") for path, _ in imagenet_samples.samples(kind)]
    for _ in range(400):
        content = bytearray(files[random.integers(len(files))])
        for place in random.integers(0, min(len(content), 1500), random.integers(1, 30)):
            content[place] = random.integers(256)
        try:
            assert images.decode(bytes(content[: random.integers(1, 40_000)])).mode == "RGB"
        except UnreadableError:
            unreadable += 1
    assert 100 < unreadable < 400


@pytest.mark.parametrize("width, height", [(500, 375), (32, 32), (3, 900), (1, 1)])
def test_random_boxes_lie_inside_and_keep_area_and_ratio(width, height):
    random = np.random.default_rng(0)
    for _ in range(200):
        left, top, right, bottom = images.random_box(width, height, random)
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
        if (width, height) == (500, 375):
            ratio, area = (right - left) / (bottom - top), (right - left) * (bottom - top) / (width * height)
            assert 0.73 < ratio < 1.36 and 0.078 < area <= 1.0


def test_random_boxes_cover_the_range_of_areas():
    random = np.random.default_rng(1)
    boxes = np.array([images.random_box(400, 400, random) for _ in range(2000)])
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / 160_000
    assert areas.min() < 0.1 and areas.max() > 0.9
    assert 0.47 < areas.mean() < 0.54  # uniform in 0.08 to 1 but for the large ones that do not fit


def test_a_training_view_is_its_box_scaled_and_half_of_the_views_are_mirrored():
    """On a picture whose red grows to the right and whose green grows downwards, a view tells where it comes from."""
    ramp = np.zeros((256, 256, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(256)[None, :], np.arange(256)[:, None]
    picture, mirrored = Image.fromarray(ramp), 0
    for seed in range(200):
        view = images.training_view(picture, 32, np.random.default_rng(seed)).astype(float)
        left, top, right, bottom = images.random_box(256, 256, np.random.default_rng(seed))
        across = left + (np.arange(32) + 0.5) * (right - left) / 32 - 0.5
        down = top + (np.arange(32) + 0.5) * (bottom - top) / 32 - 0.5
        flipped = view[16, 0, 0] > view[16, -1, 0]
        mirrored += flipped
        inner = np.s_[2:-2]
        assert np.abs(view[16, :, 0] - (across[::-1] if flipped else across))[inner].max() < 3
        assert np.abs(view[:, 16, 1] - down)[inner].max() < 3
    assert 75 < mirrored < 125


def test_an_evaluation_view_is_the_middle():
    ramp = np.zeros((256, 341, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.linspace(0, 255, 341).astype(np.uint8)[None, :], np.arange(256)[:, None]
    view = images.evaluation_view(Image.fromarray(ramp), 224)
    assert np.array_equal(view, ramp[16:240, 58:282])  # the shorter side has 256 already: nothing is scaled
    assert images.evaluation_view(Image.fromarray(ramp[:10, :20]), 224).shape == (224, 224, 3)
    assert images.evaluation_view(Image.fromarray(ramp), 64).shape == (64, 64, 3)
