"""Twenty photographs in ImageNet's folder layout: for tests and demonstrations, never for results.

They come with the package foolbox (pip install --no-deps foolbox==3.3.4); each file's name holds ImageNet's label. The
images are for research, and not part of this project.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
from pathlib import Path

from scripts.common.errors import reporting_write_errors
from thor.runtime.errors import UserError

PACKAGE = "foolbox==3.3.4"


def folder() -> Path:
    """The folder of the package's samples. The package is not imported, because its dependencies are not installed."""
    found = importlib.util.find_spec("foolbox")
    if found is None or found.origin is None:
        raise UserError(f"the sample photographs are missing; run:  pip install --no-deps {PACKAGE}")
    return Path(found.origin).parent / "data"


def samples(kind: str) -> list[tuple[Path, int]]:
    """Files and labels of the samples of `imagenet`, `cifar10` or `cifar100`, sorted by file name."""
    found = sorted(folder().glob(f"{kind}_*"))
    return [(path, int(re.split(r"[_.]", path.name)[2])) for path in found]


def arrange(target: Path) -> Path:
    """Copy the twenty JPEGs to target/train/nXXXXXXXX and target/val/nXXXXXXXX, the same ones in both.

    The number in a folder's name is ImageNet's label, not a WordNet number, so that sorted folders are in ImageNet's
    order. The target appears only when it is complete, even if several processes arrange it at the same time.
    """
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with reporting_write_errors(target, "the sample photographs are not copied"):
            for part in ("train", "val"):
                for number, (path, label) in enumerate(samples("imagenet")):
                    place = partial / part / f"n{label:08d}"
                    place.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, place / f"n{label:08d}_{number}.JPEG")
            _into_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _into_place(partial: Path, target: Path) -> None:
    """Rename `partial` to `target`, unless another process has just put its own copy there."""
    try:
        os.replace(partial, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not (target / "val").is_dir():
            raise UserError(
                f"{target}: is not empty, and has no val/; delete it, and it is made anew, or choose another folder"
            ) from None
