"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32 x 32, in the authors' binary format.

A record is its label bytes (CIFAR-10: the class; CIFAR-100: the superclass, then the class), then 1024 red, 1024 green
and 1024 blue bytes, row by row. `resolve` looks for the files in a folder named by the user, else in the folder that
CIFAR10_DIR or CIFAR100_DIR names, else in the cache and in the system's folder. If none has them, it downloads the
authors' archive and verifies its checksum.
"""

from __future__ import annotations

import io
import logging
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.data import fetch
from scripts.data.batches import Split
from thor.runtime.errors import UserError

SITE = "https://www.cs.toronto.edu/~kriz/"
PIXELS = 3 * 32 * 32

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Format:
    """One of the two data sets.

    Attributes:
        title: Its name in messages.
        variable: Environment variable that may name its folder.
        classes: Number of classes.
        label_bytes: Bytes before a record's pixels; the last one is the class.
        train: Files of the training part.
        test: Files of the test part.
        images: Images in each file, as published.
        archive: Name of the authors' archive.
        inside: Folder in the archive.
        md5: Published checksum of the archive.
        mean: Mean of each channel over the training images, pixels in 0 to 1.
        std: Standard deviation of each channel over the training images, pixels in 0 to 1.
    """

    title: str
    variable: str
    classes: int
    label_bytes: int
    train: tuple[str, ...]
    test: tuple[str, ...]
    images: dict[str, int]
    archive: str
    inside: str
    md5: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def files(self) -> tuple[str, ...]:
        """All files."""
        return self.train + self.test


FORMATS = {
    "cifar10": Format(
        title="CIFAR-10",
        variable="CIFAR10_DIR",
        classes=10,
        label_bytes=1,
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test=("test_batch.bin",),
        images={**{f"data_batch_{number}.bin": 10_000 for number in range(1, 6)}, "test_batch.bin": 10_000},
        archive="cifar-10-binary.tar.gz",
        inside="cifar-10-batches-bin",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Format(
        title="CIFAR-100",
        variable="CIFAR100_DIR",
        classes=100,
        label_bytes=2,
        train=("train.bin",),
        test=("test.bin",),
        images={"train.bin": 50_000, "test.bin": 10_000},
        archive="cifar-100-binary.tar.gz",
        inside="cifar-100-binary",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
}


def load(name: str, folder: Path, part: str) -> Split:
    """Read the `train` or `test` part of `cifar10` or `cifar100`: images [count, 3, 32, 32] and classes [count]."""
    kind = FORMATS[name]
    parts = [_read(folder / file, kind) for file in {"train": kind.train, "test": kind.test}[part]]
    return Split(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def resolve(name: str, folder: str | Path | None = None) -> Path:
    """Return the folder that holds a data set's files; download them if no folder has them."""
    kind = FORMATS[name]

    def download() -> Path:
        return _download(name)

    return fetch.locate(
        kind.title,
        folder,
        kind.variable,
        (fetch.cache_folder(name), Path("/usr/share/datasets") / name),
        fetch.lacks(kind.files),
        (download,),
        f"Get {SITE}{kind.archive}, unpack it, and run:  export {kind.variable}=/that/folder/{kind.inside}",
        size="170 MB",
    )


def _read(path: Path, kind: Format) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read images [count, 3, 32, 32] and classes [count] of a file; errors name the file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    record = kind.label_bytes + PIXELS
    if not content:
        raise UserError(f"{path}: the file is empty")
    if len(content) % record:
        raise UserError(
            f"{path}: truncated, or no file of {kind.title}: its {len(content)} bytes are no multiple of {record}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = records[:, kind.label_bytes - 1]
    if labels.max() >= kind.classes:
        raise UserError(
            f"{path}: record {labels.argmax()} has the class {labels.max()}, and {kind.title} has 0 to "
            f"{kind.classes - 1}"
        )
    published = kind.images[path.name]
    if len(records) != published:
        log.warning("%s: has %d images, and the published file has %d", path, len(records), published)
    return records[:, kind.label_bytes :].reshape(-1, 3, 32, 32), labels


def _download(name: str) -> Path:
    """Download the authors' archive, and put its files into the cache."""
    kind = FORMATS[name]
    content = fetch.download(SITE + kind.archive, kind.md5)
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for file in kind.files:
                member = archive.extractfile(f"{kind.inside}/{file}")
                if member is None:
                    raise UserError(f"{kind.archive}: holds no {kind.inside}/{file}")
                (Path(temporary) / file).write_bytes(member.read())
        return fetch.keep(Path(temporary), kind.files, fetch.cache_folder(name))
