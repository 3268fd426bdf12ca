"""ImageNet as MindRecord: a few large files in place of a million small ones.

    python -m scripts.data.mindrecord IMAGENET OUT [--shards 16] [--strict]

converts train/ and val/ of a folder of JPEGs into OUT/train and OUT/val, and compares the result with the source:
counts, labels, names and bytes. The images remain JPEGs; one that cannot be decoded is left out and named. After an
interrupt the same command goes on: a part that is complete is only compared, not written again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore.dataset as ds
from mindspore.mindrecord import FileWriter

from scripts.common.errors import reporting_write_errors, run_program
from scripts.data import imagenet_folder, images
from scripts.data.image_source import Item
from scripts.data.imagenet_folder import ImageFolder
from scripts.data.images import UnreadableError
from thor.runtime.errors import UserError

FILE = "images.mindrecord"
ABOUT = "about.json"
SCHEMA = {"image": {"type": "bytes"}, "label": {"type": "int32"}, "name": {"type": "string"}}
COLUMNS = ["image", "label", "name"]
GROUP = 256  # images decoded and written at a time


@dataclass(frozen=True)
class Records:
    """The images in a folder of MindRecord files.

    Attributes:
        folder: Where the files are.
        classes: Names of the classes; a label is an index into it.
        count: Number of images.
        files: The MindRecord files.
        left_out: The unreadable images that were left out, by their path in the folder, and the reason of each.
    """

    folder: Path
    classes: tuple[str, ...]
    count: int
    files: tuple[str, ...]
    left_out: dict[str, str]

    def __len__(self) -> int:
        """Number of images."""
        return self.count

    def items(self, indices: Sequence[int]) -> Iterator[Item]:
        """Yield the images with these indices, in this order."""
        outside = [index for index in indices if not 0 <= index < self.count]
        if outside:  # MindDataset would return another image instead of an error
            raise IndexError(f"{self.folder}: has images 0 to {self.count - 1}, and {outside[0]} was asked for")
        if len(indices) == 0:
            return
        try:
            rows = _dataset(self.files, sampler=ds.SubsetSampler(list(indices)))
            for content, label, name in rows.create_tuple_iterator(num_epochs=1, output_numpy=True):
                # The content is a NumPy string: bytes() would drop zeros at its end, tobytes() does not.
                yield Item(content.tobytes(), int(label), f"{self.folder}:{name}")
        except RuntimeError as error:
            raise UserError(f"{self.folder}: cannot be read as MindRecord ({_first_line(error)})") from None


def load(folder: Path) -> Records:
    """Open the records in a folder that `convert` has written, and check that they are complete."""
    try:
        about = json.loads((folder / ABOUT).read_text())
        classes, count, files = tuple(about["classes"]), int(about["count"]), about["files"]
        left_out = dict(about.get("left_out", {}))  # missing in files of earlier versions
    except FileNotFoundError:
        raise UserError(
            f"{folder}: has no {ABOUT}; make MindRecord files by:  python -m scripts.data.mindrecord IMAGENET OUT"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / ABOUT}: not a description of MindRecord files ({error!r})") from None
    paths = [folder / name for name in files]
    for path in paths:
        for needed in (path, path.with_name(f"{path.name}.db")):
            if not needed.is_file():
                raise UserError(f"{needed}: no such file; convert the set again")
    records = Records(folder, classes, count, tuple(str(path) for path in paths), left_out)
    try:
        found = _dataset(records.files, shuffle=False).get_dataset_size()
    except RuntimeError as error:
        raise UserError(f"{folder}: cannot be read as MindRecord ({_first_line(error)})") from None
    if found != count:
        raise UserError(f"{folder}: holds {found} images, and {ABOUT} says {count}; convert the set again")
    return records


def convert(source: ImageFolder, target: Path, shards: int = 1, strict: bool = False) -> dict[str, str]:
    """Write the images of a folder as MindRecord, and check the result.

    The target folder appears only when its files are complete and correct.

    Args:
        source: The images.
        target: New folder for the files.
        shards: Number of files to spread the images over.
        strict: An unreadable image ends the conversion.

    Returns:
        The unreadable images that were left out, by their path in the folder, and the reason of each.
    """
    if not 1 <= shards <= 1000:
        raise UserError(f"shards must be 1 to 1000, and is {shards}")
    if target.exists():
        raise UserError(f"{target}: exists already; delete it or choose another place")
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    skipped: dict[str, str] = {}
    try:
        with reporting_write_errors(target, "nothing of this part is converted"):
            partial.mkdir(parents=True)
        kept = _write(_readable(source, skipped, strict), partial / FILE, shards)
        if kept == 0:
            raise UserError(f"{source.root}: none of its {len(source)} images can be read, such as {min(skipped)}")
        files = sorted(path.name for path in partial.iterdir() if path.suffix != ".db")
        about = {"classes": source.classes, "count": kept, "files": files, "left_out": skipped}
        with reporting_write_errors(target, "nothing of this part is converted"):
            (partial / ABOUT).write_text(json.dumps(about, indent=1))
        check(load(partial), source, skipped)
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return skipped


def finished(source: ImageFolder, target: Path, strict: bool = False) -> dict[str, str]:
    """Check a part that an earlier conversion of the same images has completed; return the images that it left out."""
    try:
        records = load(target)
        check(records, source, () if strict else records.left_out)
    except UserError as error:
        raise UserError(
            f"{target}: exists already, and does not hold these images; delete it or choose another place ({error})"
        ) from None
    return records.left_out


def check(records: Records, source: ImageFolder, skipped: Iterable[str] = ()) -> None:
    """Raise an error unless the records are the folder's images without `skipped`: names, labels and bytes."""
    left_out = {"/".join(Path(path).parts[-2:]) for path in skipped}  # earlier versions wrote the folder's path, too
    places = {path: number for number, path in enumerate(source.paths) if path not in left_out}
    if len(records) != len(places):
        raise UserError(f"{records.folder}: has {len(records)} images, and {source.root} has {len(places)}")
    if records.classes != source.classes:
        raise UserError(f"{records.folder}: its classes are not those of {source.root}")
    for item in records.items(range(len(records))):
        path = item.name.removeprefix(f"{records.folder}:")
        place = places.pop(path, None)
        if place is None:
            raise UserError(f"{item.name}: not an image of {source.root}, or there twice")
        if item.label != source.labels[place]:
            raise UserError(f"{item.name}: its label is {item.label}, and should be {source.labels[place]}")
        if item.content != (source.root / path).read_bytes():
            raise UserError(f"{item.name}: its bytes are not those of {source.root / path}")


def _readable(source: ImageFolder, skipped: dict[str, str], strict: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each image that can be decoded; record the others in `skipped`."""

    def row(number: int) -> dict[str, Any] | UnreadableError:
        path = source.root / source.paths[number]
        try:
            images.decode(path)
        except UnreadableError as error:
            return error
        return {"image": path.read_bytes(), "label": int(source.labels[number]), "name": source.paths[number]}

    with ThreadPoolExecutor() as pool:
        for first in range(0, len(source), GROUP):
            numbers = range(first, min(first + GROUP, len(source)))
            for number, result in zip(numbers, pool.map(row, numbers), strict=True):
                if not isinstance(result, UnreadableError):
                    yield result
                    continue
                if strict:
                    path = source.root / source.paths[number]
                    raise UserError(f"{path}: {result} (without --strict it would be left out)")
                skipped[source.paths[number]] = str(result)


def _write(rows: Iterator[dict[str, Any]], path: Path, shards: int) -> int:
    """Write rows into MindRecord files, and return their number."""
    writer = FileWriter(str(path), shard_num=shards)
    writer.add_schema(SCHEMA, "images of classes")
    count, group = 0, []
    for row in rows:
        group.append(row)
        count += 1
        if len(group) == GROUP:
            writer.write_raw_data(group)
            group = []
    if group:
        writer.write_raw_data(group)
    if count:
        writer.commit()
    return count


def _dataset(files: Sequence[str], **options: Any) -> ds.MindDataset:
    """MindSpore's reader of these files."""
    return ds.MindDataset(list(files), columns_list=COLUMNS, num_parallel_workers=2, **options)


def _first_line(error: Exception) -> str:
    """The first line of an error of MindSpore that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def main() -> int:
    """Convert both parts of ImageNet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagenet", type=Path, help="folder with train/ and val/")
    parser.add_argument("out", type=Path, help="new folder")
    parser.add_argument("--shards", type=int, default=16, help="files of each part (16)")
    parser.add_argument("--strict", action="store_true", help="end at an image that cannot be read")
    options = parser.parse_args()
    parts = imagenet_folder.load(imagenet_folder.resolve(options.imagenet))
    for part, source in zip(("train", "val"), parts, strict=True):
        target = options.out / part
        there = target.exists()
        if there:
            skipped = finished(source, target, options.strict)
        else:
            skipped = convert(source, target, options.shards, options.strict)
        for name, reason in skipped.items():
            print(f"left out {source.root / name}: {reason}")
        left = f", {len(skipped)} unreadable ones left out" if skipped else ""
        done = "there already, and checked" if there else "written and checked"
        print(f"{target}: {len(source) - len(skipped):,} images {done}{left}")
    return 0


if __name__ == "__main__":
    run_program(main)
