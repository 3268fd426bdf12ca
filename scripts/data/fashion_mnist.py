"""Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28 in ten balanced classes (MIT licence).

`resolve` finds its four files, and brings them where they are missing: a folder named by the user, else the
environment variable FASHION_MNIST_DIR, else the cache or the system's folder, else the Debian package
`dataset-fashion-mnist`, else the set's own site, checksums compared.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts.data.idx import read_images, read_labels
from scripts.errors import UserError, run_program

VARIABLE = "FASHION_MNIST_DIR"
PACKAGE = "dataset-fashion-mnist"
SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
SITE = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
CLASSES = 10

# The MD5 sums that the authors publish for the files on their site (Debian packs the same bytes anew).
FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


class Split(NamedTuple):
    """Images [count, 28, 28] and labels [count], as stored."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def load(folder: Path, split: str) -> Split:
    """The `train` or `test` part of the set in a folder, checked."""
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
    """The folder that holds the four files; they are fetched where no folder has them."""
    for source, named in (("the option data.folder", folder), (VARIABLE, os.environ.get(VARIABLE))):
        if named:
            return _complete_or_error(Path(named).expanduser(), source)
    for candidate in (cache_folder(), SYSTEM_FOLDER):
        if not _missing(candidate):
            return candidate
    return _fetch()


def cache_folder() -> Path:
    """Where fetched files are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mindspore-thor" / "fashion-mnist"


def _missing(folder: Path) -> list[str]:
    """Names of the files that a folder lacks."""
    return [name for name in FILES if not (folder / name).is_file()]


def _complete_or_error(folder: Path, source: str) -> Path:
    """The folder, if it has all files."""
    missing = _missing(folder)
    if missing:
        raise UserError(f"{folder} ({source}) lacks {', '.join(missing)}")
    return folder


def _fetch() -> Path:
    """Bring the files by the package manager, or from the set's site; the folder they are in."""
    print("Fetching Fashion-MNIST (31 MB, once) ...", file=sys.stderr)
    reasons = []
    for way in (_install_package, _unpack_package, _download):
        try:
            return way()
        except (OSError, subprocess.SubprocessError, UserError) as error:
            reasons.append(f"{way.__name__.strip('_').replace('_', ' ')}: {_reason(error)}")
    raise UserError(
        "Fashion-MNIST is not on this machine and could not be fetched.\n  "
        + "\n  ".join(reasons)
        + f"\nOn Debian or Ubuntu run:  sudo apt-get update && sudo apt-get install {PACKAGE}\n"
        f"Elsewhere put the four files of {SITE} into a folder, and run:  export {VARIABLE}=/that/folder"
    )


def _reason(error: Exception) -> str:
    """A failure in one line."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or "").strip().splitlines()
        return lines[-1] if lines else f"{error.cmd[0]} ended with status {error.returncode}"
    return str(error)


def _install_package() -> Path:
    """apt-get install, as root."""
    _require_apt()
    if os.geteuid() != 0:
        raise UserError("not root")
    _apt("install", "--yes", "--no-install-recommends", PACKAGE)
    return _complete_or_error(SYSTEM_FOLDER, PACKAGE)


def _unpack_package() -> Path:
    """apt-get download into a temporary folder, unpacked into the cache; needs no root."""
    _require_apt()
    with tempfile.TemporaryDirectory() as temporary:
        _apt("download", PACKAGE, folder=temporary)
        archive = next(Path(temporary).glob("*.deb"))
        _run(["dpkg-deb", "-x", str(archive), temporary])
        return _move_to_cache(Path(temporary) / SYSTEM_FOLDER.relative_to("/"))


def _require_apt() -> None:
    """An error where there is no apt-get."""
    if shutil.which("apt-get") is None:
        raise UserError("apt-get is not on this machine")


def _apt(*arguments: str, folder: str | None = None) -> None:
    """Run apt-get; where it fails, once more after `apt-get update`."""
    try:
        _run(["apt-get", *arguments], folder)
    except subprocess.CalledProcessError:
        _run(["apt-get", "update"])
        _run(["apt-get", *arguments], folder)


def _run(command: list[str], folder: str | None = None) -> None:
    """Run a command silently, never asking anything."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=300)


def _download() -> Path:
    """The four files from the set's own site, each compared with its published MD5 sum."""
    with tempfile.TemporaryDirectory() as temporary:
        for name, checksum in FILES.items():
            with urllib.request.urlopen(SITE + name, timeout=30) as response:
                content = response.read()
            found = hashlib.md5(content, usedforsecurity=False).hexdigest()
            if found != checksum:
                raise UserError(f"{name}: the MD5 sum is {found}, and should be {checksum}")
            (Path(temporary) / name).write_bytes(content)
        return _move_to_cache(Path(temporary))


def _move_to_cache(folder: Path) -> Path:
    """Copy the files into the cache, each under its final name only once complete."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        partial = cache / f"{name}.partial"
        shutil.copyfile(folder / name, partial)
        os.replace(partial, cache / name)
    return cache


def main() -> int:
    """Bring the set and say where it is."""
    folder = resolve()
    train, test = load(folder, "train"), load(folder, "test")
    print(f"Fashion-MNIST: {len(train.labels):,} + {len(test.labels):,} images in {folder}")
    return 0


if __name__ == "__main__":
    run_program(main)
