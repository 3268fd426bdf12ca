"""From the bytes of a photograph to what a network is shown: decoding, crops, mirroring.

The two views are those of nearly all ImageNet results: training takes a random part of the image and mirrors half of
them, evaluation the middle of the image. Both give [size, size, 3], 0 to 255.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

# Over ImageNet's training images; a pixel is in 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

AREA = (0.08, 1.0)  # share of the image's area that a random crop covers
RATIO = (3 / 4, 4 / 3)  # its width over its height
ATTEMPTS = 10  # crops that may stick out of the image before the middle is taken instead

Box = tuple[float, float, float, float]  # left, top, right, bottom


class UnreadableError(Exception):
    """A file that gives no image; the message says why."""


def decode(encoded: Path | bytes) -> Image.Image:
    """The RGB image in a file or in its bytes, all of it decoded; grey and CMYK images are converted."""
    try:
        content = encoded if isinstance(encoded, bytes) else encoded.read_bytes()
        if not content:
            raise UnreadableError("the file is empty")
        with Image.open(io.BytesIO(content)) as image:
            return image.convert("RGB")
    except FileNotFoundError:
        raise UnreadableError("no such file") from None
    except UnidentifiedImageError:
        raise UnreadableError(f"not an image (first bytes {content[:4].hex(' ')})") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UnreadableError(str(error)) from None


def training_view(image: Image.Image, size: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """A random part of random shape, scaled to size x size, mirrored half of the time."""
    view = image.resize((size, size), Image.Resampling.BILINEAR, box=random_box(image.width, image.height, random))
    pixels = np.asarray(view)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def evaluation_view(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """The middle of the image: its shorter side scaled to size * 256 / 224, then size x size cut out."""
    shorter = round(size * 256 / 224)
    scale = shorter / min(image.width, image.height)
    width, height = (max(shorter, round(side * scale)) for side in (image.width, image.height))
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    top, left = (height - size) // 2, (width - size) // 2
    return pixels[top : top + size, left : left + size]


def random_box(width: int, height: int, random: np.random.Generator) -> Box:
    """A box within the image: its share of the area uniform in AREA, its ratio log-uniform in RATIO.

    Where ten such boxes do not fit, as in very long images, it is the largest one in the middle with a ratio in RATIO.
    """
    for _ in range(ATTEMPTS):
        area = width * height * random.uniform(*AREA)
        ratio = float(np.exp(random.uniform(*np.log(RATIO))))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
