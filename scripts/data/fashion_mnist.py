"""Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28 in ten balanced classes (MIT licence).

`resolve` looks for its four files in a folder named by the user, else in the folder that FASHION_MNIST_DIR names, else
in the cache and in the system's folder. If none has them, they come from the Debian package `dataset-fashion-mnist`, or
else from the authors' site, where checksums are verified.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.common.errors import run_program
from scripts.data import fetch
from scripts.data.batches import Split
from scripts.data.idx import read_images, read_labels
from thor.runtime.errors import UserError

VARIABLE = "FASHION_MNIST_DIR"
PACKAGE = "dataset-fashion-mnist"
SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
SITE = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
CLASSES = 10
MEAN, STD = 0.2860, 0.3530  # of the training images' pixels in [0, 1]

# The MD5 sums that the authors publish for the files on their site. Debian's files are compressed anew, so they differ.
FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_missing = fetch.lacks(tuple(FILES))


def load(folder: Path, split: str) -> Split:
    """Read and check the `train` or `test` part in a folder: images [count, 28, 28] and labels [count]."""
    prefix = {"train": "train", "test": "t10k"}[split]
    images_path = folder / f"{prefix}-images-idx3-ubyte.gz"
    labels_path = folder / f"{prefix}-labels-idx1-ubyte.gz"
    images, labels = read_images(images_path), read_labels(labels_path)
    if images.shape[1:] != (28, 28):
        raise UserError(f"{images_path}: images must be 28 x 28, and are {images.shape[1]} x {images.shape[2]}")
    if len(images) != len(labels):
        raise UserError(f"{labels_path}: has {len(labels)} labels for {len(images)} images of {images_path.name}")
    if len(labels) == 0:
        raise UserError(f"{labels_path}: holds no examples")
    if labels.max() >= CLASSES:
        raise UserError(f"{labels_path}: labels must be 0 to {CLASSES - 1}, and one is {labels.max()}")
    return Split(images, labels)


def resolve(folder: str | Path | None = None) -> Path:
    """Return the folder that holds the four files; fetch them if no folder has them."""
    return fetch.locate(
        "Fashion-MNIST",
        folder,
        VARIABLE,
        (cache_folder(), SYSTEM_FOLDER),
        _missing,
        (_install_package, _unpack_package, _download),
        f"On Debian or Ubuntu run:  sudo apt-get update && sudo apt-get install {PACKAGE}\n"
        f"Elsewhere put the four files of {SITE} into a folder, and run:  export {VARIABLE}=/that/folder",
        size="31 MB",
    )


def training_batches(
    batch_size: int = 128, seed: int = 0, normalised: bool = True
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
    """Batches of the training set, for ``thor profile --data scripts.data.fashion_mnist:training_batches``.

    Args:
        batch_size: Examples a batch; what is left over at the end is dropped.
        seed: Decides the order.
        normalised: Pixels have mean 0 and standard deviation 1; otherwise they are in [0, 1], to be reproduced.

    Yields:
        Images [batch_size, 1, 28, 28] and labels [batch_size].
    """
    images, labels = _load_once(resolve(), "train")
    order = np.random.default_rng(seed).permutation(len(labels))
    for first in range(0, len(labels) - batch_size + 1, batch_size):
        rows = order[first : first + batch_size]
        pixels = images[rows, None].astype(np.float32) / 255.0
        if normalised:
            pixels = (pixels - np.float32(MEAN)) / np.float32(STD)
        yield pixels, labels[rows].astype(np.int32)


_load_once = functools.lru_cache(maxsize=1)(load)  # a profile asks for its batches several times


def cache_folder() -> Path:
    """The folder in the cache for fetched files."""
    return fetch.cache_folder("fashion-mnist")


def _install_package() -> Path:
    """Install the Debian package, as root."""
    fetch.install_package(PACKAGE)
    return fetch.complete(SYSTEM_FOLDER, PACKAGE, _missing)


def _unpack_package() -> Path:
    """Download the Debian package into a temporary folder, and copy its files into the cache; needs no root."""
    with fetch.unpacked_package(PACKAGE) as root:
        return fetch.keep(root / SYSTEM_FOLDER.relative_to("/"), list(FILES), cache_folder())


def _download() -> Path:
    """Download the four files from the authors' site, and compare each with its published MD5 sum."""
    with tempfile.TemporaryDirectory() as temporary:
        for name, checksum in FILES.items():
            (Path(temporary) / name).write_bytes(fetch.download(SITE + name, checksum))
        return fetch.keep(Path(temporary), list(FILES), cache_folder())


def main() -> int:
    """Fetch the data set if it is missing, and print where it is."""
    folder = resolve()
    train, test = load(folder, "train"), load(folder, "test")
    print(f"Fashion-MNIST: {len(train.labels):,} + {len(test.labels):,} images in {folder}")
    return 0


if __name__ == "__main__":
    run_program(main)
