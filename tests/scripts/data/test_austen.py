import struct
import zlib

import pytest

from scripts.data import austen, text
from thor.runtime.errors import UserError


def _string(line, flags=0x40000):
    data = line.encode("latin-1" if flags & 0x4000 else "utf-8")
    return struct.pack(">II", flags | 9, len(data)) + data


def _record(*strings, kind=16):
    """A novel as the package's database holds it."""
    content = b"X\n" + bytes(20) + struct.pack(">II", kind, len(strings)) + b"".join(strings)
    return struct.pack(">I", len(content)) + zlib.compress(content)


def test_the_six_novels():
    folder = austen.resolve()
    novels = text.read(folder)
    assert sorted(novels) == sorted(austen.NOVELS)
    for name, title in austen.NOVELS.items():
        assert novels[name].lstrip().startswith(title)
    assert sum(len(novel) for novel in novels.values()) == 4_025_022
    assert "It is a truth universally acknowledged, that a single man in possession" in novels["pride_and_prejudice"]
    assert "her £20,000, any one" in novels["mansfield_park"]  # the one line that is not ASCII
    ends = [novels[name].rstrip().rpartition("\n")[2].lower() for name in ("emma", "mansfield_park", "persuasion")]
    assert ends == ["finis", "the end", "finis"]  # nothing is cut off


def test_strings_of_all_encodings():
    database = _record(_string(""), _string("EMMA"), _string("£5", 0x8000), _string("é", 0x4000)) + _record(
        _string("B")
    )
    assert austen.parse(database) == {"EMMA": "\nEMMA\n£5\né", "B": "B"}


@pytest.mark.parametrize(
    "database, message",
    [
        (_record(_string("EMMA"))[:-6], "truncated after 0 novels"),
        (_record(_string("A")) + b"\0\0\0\5nonsense", "broken after 1 novels"),
        (_record(_string("A"), kind=13), "holds something else than vectors of strings"),
        (_record(_string("A"), struct.pack(">II", 13, 0)), "value 1 of 2 is no string"),
    ],
)
def test_damaged_database(database, message):
    with pytest.raises(UserError, match=message):
        austen.parse(database)


def test_option_before_variable_before_cache_and_package_where_all_lack_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(austen.VARIABLE, raising=False)
    database = b"".join(_record(_string(title), _string("The end.")) for title in austen.NOVELS.values())
    commands = []

    def run(command, cwd=None, **_):
        commands.append(command[0])
        if command[0] == "apt-get":
            (austen.Path(cwd) / "package.deb").touch()
        else:
            target = austen.Path(command[-1]) / austen.DATABASE
            target.parent.mkdir(parents=True)
            target.write_bytes(database)

    monkeypatch.setattr(austen.fetch.shutil, "which", lambda name: name)
    monkeypatch.setattr(austen.fetch.subprocess, "run", run)
    cache = austen.resolve()
    assert cache == austen.cache_folder() and commands == ["apt-get", "dpkg-deb"]
    assert text.read(cache)["emma"] == "EMMA\nThe end."
    assert austen.resolve() == cache and len(commands) == 2
    (tmp_path / "own").mkdir()
    for name in austen.NOVELS:
        (tmp_path / "own" / f"{name}.txt").write_text("Mine.")
    monkeypatch.setenv(austen.VARIABLE, str(tmp_path / "own"))
    assert austen.resolve() == tmp_path / "own"
    assert austen.resolve(cache) == cache
    (tmp_path / "own" / "emma.txt").unlink()
    with pytest.raises(UserError, match=r"own \(AUSTEN_DIR\) lacks emma\.txt"):
        austen.resolve()
