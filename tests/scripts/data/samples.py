"""Real sample images in the true on-disk formats of the sets they come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from scripts.data import imagenet_samples
from scripts.data.cifar import FORMATS


def cifar_samples(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Twenty images [20, 3, 32, 32] of `cifar10` or `cifar100`, and their classes."""
    found = imagenet_samples.samples(name)
    images = [np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1) for path, _ in found]
    return np.stack(images), np.array([label for _, label in found], np.uint8)


def write_cifar(folder: Path, name: str) -> Path:
    """The samples as training part (spread over its files) and, all of them, as test part."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = FORMATS[name]
    images, labels = cifar_samples(name)
    superclass = np.full((len(labels), kind.label_bytes - 1), 19, np.uint8)
    records = np.concatenate([superclass, labels[:, None], images.reshape(len(labels), -1)], axis=1)
    for files in (kind.train, kind.test):
        for file, part in zip(files, np.array_split(records, len(files)), strict=True):
            (folder / file).write_bytes(part.tobytes())
    return folder
