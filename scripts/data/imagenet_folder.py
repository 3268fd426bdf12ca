"""ImageNet as a folder: train/n01440764/n01440764_10026.JPEG, and val/ likewise, one folder per class.

A class's label is its index among the sorted folder names of train/. The images require a registration at
https://image-net.org; the environment variable IMAGENET_DIR or the option data.folder names their folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.data import fetch
from scripts.data.image_source import Item
from thor.runtime.errors import UserError

VARIABLE = "IMAGENET_DIR"
ENDINGS = (".jpeg", ".jpg")
_WORDNET = re.compile(r"(n\d{8})_")


@dataclass(frozen=True)
class ImageFolder:
    """The images of train/ or val/, listed but not read.

    Attributes:
        root: The folder train/ or val/.
        classes: Names of the classes, sorted.
        paths: Files relative to the root, class by class, sorted.
        labels: Class of each file.
    """

    root: Path
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: NDArray[np.int32]

    def __len__(self) -> int:
        """Number of images."""
        return len(self.paths)

    def items(self, indices: Sequence[int]) -> Iterator[Item]:
        """Yield the images with these indices, in this order."""
        for index in indices:
            path = self.root / self.paths[index]
            yield Item(path, int(self.labels[index]), str(path))


def resolve(folder: str | Path | None = None) -> Path:
    """Return the folder that holds train/ and val/."""
    return fetch.locate(
        "ImageNet",
        folder,
        VARIABLE,
        (fetch.cache_folder("imagenet"), Path("/usr/share/datasets/imagenet")),
        _missing,
        (),
        "Its licence asks for registration: get ILSVRC2012 at https://image-net.org/download, arrange both parts as\n"
        f"train/CLASS/*.JPEG and val/CLASS/*.JPEG, and run:  export {VARIABLE}=/that/folder",
    )


def load(folder: Path) -> tuple[ImageFolder, ImageFolder]:
    """List the training and the validation images; both must have the same classes."""
    train = scan(folder / "train")
    return train, scan(folder / "val", train.classes)


def scan(root: Path, classes: tuple[str, ...] | None = None) -> ImageFolder:
    """List the images of train/ or val/.

    Args:
        root: Folder of class folders.
        classes: The classes that must be there; any unless given.
    """
    found = _class_folders(root)
    if classes is not None:
        _same_classes(root, found, classes)
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(found):
        files = _images(root / name)
        paths += [f"{name}/{file}" for file in files]
        labels += [label] * len(files)
    return ImageFolder(root, tuple(found), tuple(paths), np.array(labels, np.int32))


def _missing(folder: Path) -> list[str]:
    """The folders, of train/ and val/, that a folder lacks."""
    return [f"{part}/" for part in ("train", "val") if not (folder / part).is_dir()]


def _class_folders(root: Path) -> list[str]:
    """Sorted names of the class folders."""
    try:
        with os.scandir(root) as entries:
            names = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{root}: {error.strerror}; it must be a folder with a folder for each class") from None
    folders = [name for name, is_folder in names if is_folder]
    if not folders:
        loose = sum(name.lower().endswith(ENDINGS) for name, _ in names)
        have = f"{loose} images and no" if loose else "no"
        raise UserError(f"{root}: has {have} class folders; images belong into {root.name}/CLASS/NAME.JPEG")
    return folders


def _same_classes(root: Path, found: list[str], expected: Sequence[str]) -> None:
    """Raise an error if val/ has other classes than train/."""
    for names, verb in ((set(expected) - set(found), "lacks"), (set(found) - set(expected), "has, and train has not,")):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UserError(f"{root}: {verb} the class folders {', '.join(sorted(names)[:3])}{more}")


def _images(folder: Path) -> list[str]:
    """Sorted names of a class's images."""
    try:
        with os.scandir(folder) as entries:
            names = (entry.name for entry in entries if not entry.name.startswith("."))  # macOS adds ._NAME.JPEG
            files = sorted(name for name in names if name.lower().endswith(ENDINGS))
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; it must be a folder of images that can be read") from None
    if not files:
        raise UserError(f"{folder}: holds no images (NAME.JPEG); delete the folder, or fill it")
    for name in files:
        wordnet = _WORDNET.match(name)
        if wordnet and _WORDNET.match(f"{folder.name}_") and wordnet[1] != folder.name:
            raise UserError(f"{folder / name}: mislabelled, an image of class {wordnet[1]} in the folder of another")
    return files
