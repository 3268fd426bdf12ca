import os

import pytest

from scripts.common.atomic_write import write_atomically


@pytest.mark.parametrize("content", ["größer", b"\x00\xff"])
def test_what_is_written_replaces_what_was_there(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_text("before")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    path.write_text("before")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "after")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("durable", [True, False])
def test_the_disk_has_the_content_before_the_name_and_the_name_at_the_end(tmp_path, monkeypatch, durable):
    """Else a power cut may leave the new name with nothing in it."""
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda opened: (done.append(os.fstat(opened).st_ino), fsync(opened)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("renamed"), replace(*paths)))
    write_atomically(tmp_path / "file.json", "new", durable)
    file, folder = (tmp_path / "file.json").stat().st_ino, tmp_path.stat().st_ino
    assert done == ([file, "renamed", folder] if durable else ["renamed"])
