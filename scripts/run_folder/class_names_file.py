"""The class names of a run on photographs, saved in its folder: they give the network's outputs their meaning."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.common.atomic_write import write_atomically
from scripts.data.factory import Feeds
from scripts.data.image_source import ImageSource
from thor.runtime.errors import UserError

CLASSES = "classes.json"


def save_class_names(folder: Path, feeds: Feeds) -> None:
    """Write the class names in the order of their numbers, if the data are photographs."""
    if isinstance(feeds.train, ImageSource):
        write_atomically(folder / CLASSES, json.dumps(feeds.train.collection.classes, indent=1) + "\n")


def check_class_names(folder: Path, feeds: Feeds) -> None:
    """Refuse photographs with other classes than the run's, or in another order; no check if the run has no names."""
    path = folder / CLASSES
    if not path.is_file() or not isinstance(feeds.train, ImageSource):
        return
    try:
        own = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        own = None
    if not isinstance(own, list) or not all(isinstance(name, str) for name in own):
        raise UserError(f"{path}: no list of names of classes; without the file they are not compared")
    found = list(feeds.train.collection.classes)
    if found == own:
        return
    extra, missing = sorted(set(found) - set(own)), sorted(set(own) - set(found))
    parts = [f"{what} {', '.join(names[:3])}{' ...' * (len(names) > 3)}"
             for what, names in (("has", extra), ("lacks", missing)) if names]  # fmt: skip
    raise UserError(
        f"{feeds.origin}: has {len(found)} classes, and not the {len(own)} that {folder} was trained with ({CLASSES}): "
        f"it {' and '.join(parts) or 'has them in another order'}; give data.folder as it was, or one of these classes"
    )
