import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest

from scripts.data import imagenet_folder, imagenet_samples, mindrecord
from scripts.data.image_source import ImageSource
from thor.runtime.errors import UserError


@pytest.fixture(scope="module")
def listing(tmp_path_factory):
    return imagenet_folder.scan(imagenet_samples.arrange(tmp_path_factory.mktemp("imagenet")) / "train")


@pytest.fixture
def records(listing, tmp_path, monkeypatch):
    monkeypatch.setattr(mindrecord, "GROUP", 7)  # several groups, the last one not full
    mindrecord.convert(listing, tmp_path / "out", shards=3)
    return mindrecord.load(tmp_path / "out")


def test_images_come_back_in_any_order(listing, records):
    assert len(records) == 20 and records.classes == listing.classes and len(records.files) == 3
    every = list(records.items(range(20)))
    by_name = {item.name.rpartition(":")[2]: item for item in every}
    assert sorted(by_name) == sorted(listing.paths)
    for path, label in zip(listing.paths, listing.labels, strict=True):
        assert by_name[path].label == label
        assert by_name[path].content == (listing.root / path).read_bytes()
    assert list(records.items([7, 0, 7, 19])) == [every[7], every[0], every[7], every[19]]
    assert list(records.items([])) == []
    with pytest.raises(IndexError, match="has images 0 to 19, and 20 was asked for"):
        list(records.items([3, 20]))


def test_batches_are_those_of_a_folder(records):
    """The same protocol: a start skips, ranks share, evaluation sees all."""
    options = {"collection": records, "size": 32, "seed": 5, "workers": 2}
    whole = list(ImageSource(batch_size=4, **options).epoch(1))
    rest = list(ImageSource(batch_size=4, **options).epoch(1, 3))
    assert all(np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) for a, b in zip(rest, whole[3:], strict=True))
    parts = [list(ImageSource(batch_size=2, rank=rank, ranks=2, **options).epoch(1)) for rank in (0, 1)]
    for (pixels, labels), *shares in zip(whole, *parts, strict=True):
        assert np.array_equal(pixels, np.concatenate([share[0] for share in shares]))
        assert np.array_equal(labels, np.concatenate([share[1] for share in shares]))
    evaluated = np.concatenate([labels for _, labels in ImageSource(batch_size=8, training=False, **options).epoch(0)])
    assert sorted(evaluated[evaluated >= 0]) == sorted(item.label for item in records.items(range(20)))


def test_unreadable_images_are_left_out_and_named_or_end_it(tmp_path):
    root = imagenet_samples.arrange(tmp_path / "in") / "train"
    bad = sorted(root.rglob("*.JPEG"))[4]
    bad.write_bytes(bad.read_bytes()[:3000])
    listing = imagenet_folder.scan(root)
    with pytest.raises(UserError, match=rf"{bad}: .*truncated.* \(without --strict it would be left out\)"):
        mindrecord.convert(listing, tmp_path / "strict", strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]  # nothing half-written
    skipped = mindrecord.convert(listing, tmp_path / "out")
    name = str(bad.relative_to(root))
    assert list(skipped) == [name] and "truncated" in skipped[name]
    assert len(mindrecord.load(tmp_path / "out")) == 19


def test_nothing_readable(tmp_path):
    root = imagenet_samples.arrange(tmp_path / "in") / "train"
    for path in root.rglob("*.JPEG"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="none of its 20 images can be read"):
        mindrecord.convert(imagenet_folder.scan(root), tmp_path / "out")


def test_check_finds_other_labels_bytes_and_counts(listing, records, tmp_path):
    mindrecord.check(records, listing)
    with pytest.raises(UserError, match="has 20 images, and .* has 19"):
        mindrecord.check(records, listing, [str(listing.root / listing.paths[0])])
    swapped = dataclasses.replace(listing, labels=listing.labels[::-1].copy())
    with pytest.raises(UserError, match="its label is .*, and should be"):
        mindrecord.check(records, swapped)
    with pytest.raises(UserError, match="its classes are not those of"):
        mindrecord.check(records, dataclasses.replace(listing, classes=listing.classes[::-1]))
    copy = imagenet_samples.arrange(tmp_path / "copy") / "train"
    changed = imagenet_folder.scan(copy)
    (copy / changed.paths[9]).write_bytes(b"other")
    with pytest.raises(UserError, match=rf"{changed.paths[9]}: its bytes are not those of"):
        mindrecord.check(records, changed)
    (copy / changed.paths[9]).rename((copy / changed.paths[9]).with_name("z.JPEG"))
    with pytest.raises(UserError, match="not an image of"):
        mindrecord.check(records, imagenet_folder.scan(copy))


def test_damaged_records_are_named(records, tmp_path):
    about = tmp_path / "out" / "about.json"
    told = json.loads(about.read_text())
    about.write_text(json.dumps({**told, "count": 21}))
    with pytest.raises(UserError, match="holds 20 images, and about.json says 21"):
        mindrecord.load(tmp_path / "out")
    about.write_text("{}")
    with pytest.raises(UserError, match="about.json: not a description of MindRecord files"):
        mindrecord.load(tmp_path / "out")
    about.write_text(json.dumps(told))
    file = tmp_path / "out" / "images.mindrecord1"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match="out: cannot be read as MindRecord"):
        list(mindrecord.load(tmp_path / "out").items([0]))
    file.unlink()
    with pytest.raises(UserError, match=r"images\.mindrecord1: no such file; convert the set again"):
        mindrecord.load(tmp_path / "out")
    with pytest.raises(UserError, match="has no about.json; make MindRecord files by:  python -m scripts.data.mindrec"):
        mindrecord.load(tmp_path)


def test_impossible_targets_are_refused(listing, tmp_path):
    with pytest.raises(UserError, match="shards must be 1 to 1000, and is 0"):
        mindrecord.convert(listing, tmp_path / "out", shards=0)
    with pytest.raises(UserError, match="exists already; delete it or choose another place"):
        mindrecord.convert(listing, tmp_path)


def test_after_an_interrupt_the_command_goes_on(tmp_path, monkeypatch, capsys):
    root = imagenet_samples.arrange(tmp_path / "in")
    bad = sorted((root / "train").rglob("*.JPEG"))[4]
    bad.write_bytes(b"")
    monkeypatch.setattr(sys, "argv", ["mindrecord", str(root), str(tmp_path / "out")])
    assert mindrecord.main() == 0
    first, written = capsys.readouterr().out, (tmp_path / "out" / "train" / "images.mindrecord00").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "out" / "val")
    (tmp_path / "out" / "val.partial").mkdir()
    assert mindrecord.main() == 0
    again = capsys.readouterr().out
    assert again == first.replace("19 images written", "19 images there already,")
    shutil.move(root, tmp_path / "moved")  # as a disk that is mounted elsewhere
    monkeypatch.setattr(sys, "argv", ["mindrecord", str(tmp_path / "moved"), str(tmp_path / "out")])
    assert mindrecord.main() == 0
    moved = again.replace("20 images written", "20 images there already,").replace(str(root), str(tmp_path / "moved"))
    assert capsys.readouterr().out == moved
    assert (tmp_path / "out" / "train" / "images.mindrecord00").stat().st_mtime_ns == written
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--strict"])
    with pytest.raises(UserError, match=r"out/train: exists already, .* delete it .*has 19 images, and .* has 20"):
        mindrecord.main()


def test_the_command_converts_both_parts(listing, tmp_path, monkeypatch, capsys):
    arguments = ["mindrecord", str(listing.root.parent), str(tmp_path / "out"), "--shards", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert mindrecord.main() == 0
    assert capsys.readouterr().out.count("20 images written and checked") == 2
    assert [len(mindrecord.load(tmp_path / "out" / part)) for part in ("train", "val")] == [20, 20]
