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
