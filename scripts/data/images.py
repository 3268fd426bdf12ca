"""From the bytes of a photograph to a network's input: decoding, crops, mirroring.

The two views are the usual ones of ImageNet. Training takes a random crop and mirrors it with probability 1/2;
evaluation takes the centre of the image. Both return pixels [size, size, 3], 0 to 255.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

# Mean and standard deviation of each channel over ImageNet's training images, pixels in 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

AREA = (0.08, 1.0)  # share of the image's area that a random crop covers
RATIO = (3 / 4, 4 / 3)  # width over height of a random crop
ATTEMPTS = 10  # random crops that are tried; if none lies within the image, the centre is taken

Box = tuple[float, float, float, float]  # left, top, right, bottom


class UnreadableError(Exception):
    """A file cannot be decoded as an image; the message says why."""


def decode(encoded: Path | bytes) -> Image.Image:
    """Decode a file, or the bytes of one, completely, and convert it to RGB."""
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
    """A random crop of random aspect ratio, scaled to size x size, mirrored with probability 1/2."""
    view = image.resize((size, size), Image.Resampling.BILINEAR, box=random_box(image.width, image.height, random))
    pixels = np.asarray(view)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def evaluation_view(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """The centre of the image: the shorter side is scaled to size * 256 / 224, then size x size is cut out."""
    shorter = round(size * 256 / 224)
    scale = shorter / min(image.width, image.height)
    width, height = (max(shorter, round(side * scale)) for side in (image.width, image.height))
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    top, left = (height - size) // 2, (width - size) // 2
    return pixels[top : top + size, left : left + size]


def random_box(width: int, height: int, random: np.random.Generator) -> Box:
    """A random box within the image: share of the area uniform in AREA, aspect ratio log-uniform in RATIO.

    If ATTEMPTS such boxes do not fit, as in very long images, it is the largest centred box with a ratio in RATIO.
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
