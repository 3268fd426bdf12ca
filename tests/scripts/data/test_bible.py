import subprocess

import pytest

from scripts.data import bible, text
from thor.runtime.errors import UserError


def printed(verses=bible.VERSES, book="Ge"):
    """As many lines as the Bible has verses, all but one of one book."""
    lines = [f"{book}1:{number} And it was so." for number in range(1, verses)]
    return "\n".join([*lines, "Rev22:21 Amen."]) + "\n"


def test_the_sixty_six_books():
    books = text.read(bible.resolve())
    assert len(books) == 66 and list(books)[0] == "01_ge" and list(books)[-1] == "66_rev"
    assert books["01_ge"].startswith("In the beginning God created the heaven and the earth.\nAnd the earth was")
    assert books["66_rev"].endswith("The grace of our Lord Jesus Christ be with you all. Amen.\n")
    assert sum(book.count("\n") for book in books.values()) == 31_102
    assert books["43_john"].splitlines()[3] == "In him was life; and the life was the light of men."


def test_books_of_what_the_program_prints():
    books = bible.parse(printed())
    assert books["Rev"] == "Amen.\n" and books["Exo"] == "\n" and books["Ge"].count("And it was so.") == 31_101


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (printed(verses=10), "printed 10 verses, and the Bible has 31,102"),
        (printed(book="Tob"), "line 1 of its text is no verse: 'Tob1:1 And it was so.'"),
        ("bible: no such file\n", "line 1 of its text is no verse: 'bible: no such file'"),
    ],
)
def test_what_the_program_may_not_print(output, message):
    with pytest.raises(UserError, match=message):
        bible.parse(output)


def test_cache_before_packages_and_a_named_folder_before_both(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(bible.VARIABLE, raising=False)
    commands = []

    def run(command, cwd=None, **_):
        commands.append(bible.Path(command[0]).name)
        if command[0] == "apt-get":
            (bible.Path(cwd) / "package.deb").touch()
        return subprocess.CompletedProcess(command, 0, stdout=printed())

    monkeypatch.setattr(bible.fetch.shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    cache = bible.resolve()
    assert cache == bible.cache_folder() and commands == ["apt-get", "dpkg-deb", "apt-get", "dpkg-deb", "bible"]
    assert (cache / "66_rev.txt").read_text() == "Amen.\n"
    assert bible.resolve() == cache and len(commands) == 5
    monkeypatch.setenv(bible.VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=r"\(BIBLE_DIR\) lacks 01_ge\.txt, 02_exo\.txt"):
        bible.resolve()
    assert bible.resolve(cache) == cache
