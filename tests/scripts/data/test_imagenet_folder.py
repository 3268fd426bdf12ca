import os
import shutil
from http.client import IncompleteRead

import pytest

from scripts.data import fetch, imagenet_folder, imagenet_samples
from thor.runtime.errors import UserError


@pytest.fixture
def root(tmp_path):
    return imagenet_samples.arrange(tmp_path / "imagenet")


def test_labels_are_the_sorted_folders(root):
    train, val = imagenet_folder.load(root)
    assert len(train) == len(val) == 20
    assert len(train.classes) == 19 and train.classes == tuple(sorted(train.classes))
    assert train.classes[0] == "n00000022" and train.labels.max() == 18
    for item in train.items(range(20)):
        assert item.content.parent.name == train.classes[item.label]
    places = [item.name for item in train.items([4, 1, 4])]
    assert places == [str(root / "train" / train.paths[index]) for index in (4, 1, 4)]


def test_other_files_and_hidden_folders_are_no_images(root):
    folder = root / "train" / "n00000022"
    (folder / "README.txt").touch()
    (root / "train" / ".cache").mkdir()
    (folder / "._second.jpg").write_bytes(b"what macOS puts beside a file")
    (folder / "second.jpg").write_bytes(next(folder.glob("*.JPEG")).read_bytes())
    assert len(imagenet_folder.scan(root / "train")) == 21


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=r"absent: No such file or directory; it must be a folder with a folder for"):
        imagenet_folder.scan(tmp_path / "absent")


def test_folder_without_class_folders(root):
    for path in list((root / "val").rglob("*.JPEG")):
        path.rename(root / "val" / path.name)
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
    with pytest.raises(UserError, match="val: has 20 images and no class folders; images belong into val/CLASS/NAME"):
        imagenet_folder.load(root)


def test_class_without_images(root):
    (root / "train" / "n00000999").mkdir()
    with pytest.raises(UserError, match=r"n00000999: holds no images"):
        imagenet_folder.load(root)


def test_validation_part_of_other_classes(root):
    (root / "val" / "n00000022").rename(root / "val" / "n00000023")
    with pytest.raises(UserError, match="val: lacks the class folders n00000022"):
        imagenet_folder.load(root)
    (root / "val" / "n00000022").mkdir()
    with pytest.raises(UserError, match="val: has, and train has not, the class folders n00000023"):
        imagenet_folder.load(root)


def test_mislabelled_file_is_named(root):
    path = next((root / "train" / "n00000022").iterdir())
    path.rename(root / "train" / "n00000099" / path.name)
    (root / "train" / "n00000022" / "other.JPEG").touch()
    with pytest.raises(UserError, match=rf"{path.name}: mislabelled, an image of class n00000022 in the folder of"):
        imagenet_folder.scan(root / "train")


def test_option_before_variable_before_cache(root, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("IMAGENET_DIR", raising=False)
    with pytest.raises(UserError, match=r"registration: get ILSVRC2012 at .*(.|\n)*export IMAGENET_DIR=/that/folder"):
        imagenet_folder.resolve()
    cache = imagenet_samples.arrange(fetch.cache_folder("imagenet"))
    assert imagenet_folder.resolve() == cache
    monkeypatch.setenv("IMAGENET_DIR", str(root))
    assert imagenet_folder.resolve() == root
    assert imagenet_folder.resolve(cache) == cache
    with pytest.raises(UserError, match=r"\(the option data\.folder\) lacks train/, val/"):
        imagenet_folder.resolve(tmp_path)


def test_samples_say_which_command_brings_them(monkeypatch):
    monkeypatch.setattr(imagenet_samples.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps foolbox==3.3.4"):
        imagenet_samples.folder()


def test_samples_are_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    target, copy, copied = tmp_path / "samples", shutil.copyfile, []

    def interrupted(source, place):
        copied.append(copy(source, place))
        if len(copied) == 30:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            imagenet_samples.arrange(target)
    assert len(copied) == 30 and not list(tmp_path.iterdir())
    for _ in range(2):  # the second time as a rank that was slower than another
        assert len(imagenet_folder.load(imagenet_samples.arrange(target))[1]) == 20
    assert list(tmp_path.iterdir()) == [target]
    shutil.rmtree(target / "val")
    with pytest.raises(UserError, match="samples: is not empty, and has no val/; delete it"):
        imagenet_samples.arrange(target)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="samples: cannot be written .*: the sample photographs are not copied"):
        imagenet_samples.arrange(tmp_path / "file" / "samples")


def test_two_processes_that_fetch_do_not_share_a_half_copied_file(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("all of it")
    copy, number = shutil.copyfile, os.getpid()

    def meanwhile(source, place):
        copy(source, place)
        monkeypatch.setattr(shutil, "copyfile", copy)
        monkeypatch.setattr(os, "getpid", lambda: number + 1)
        fetch.keep(tmp_path / "source", ["file"], tmp_path / "cache")
        monkeypatch.setattr(os, "getpid", lambda: number)

    monkeypatch.setattr(shutil, "copyfile", meanwhile)
    assert fetch.keep(tmp_path / "source", ["file"], tmp_path / "cache") == tmp_path / "cache"
    assert [(path.name, path.read_text()) for path in (tmp_path / "cache").iterdir()] == [("file", "all of it")]


def test_a_download_that_breaks_off_is_told_with_what_to_do(tmp_path, monkeypatch):
    """What http.client raises then is no OSError."""

    def from_a_mirror():
        raise IncompleteRead(b"half")

    monkeypatch.delenv("SOME_SET", raising=False)
    with pytest.raises(UserError, match=r"could not be fetched.\n  from a mirror: IncompleteRead.*\n  get it by hand"):
        fetch.locate("A set", None, "SOME_SET", (), lambda _: [], (from_a_mirror,), "get it by hand")
