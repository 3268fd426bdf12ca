"""The King James Bible (public domain), from the Debian packages `bible-kjv` and `bible-kjv-text`.

Neither package is installed: the first one's program prints the text that the second one holds compressed. The books go
into the cache as plain text, one file per book in the Bible's order, one verse a line. A folder named by the user or by
BIBLE_DIR must hold those 66 files.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from scripts.common.errors import run_program
from scripts.data import fetch
from thor.runtime.errors import UserError

VARIABLE = "BIBLE_DIR"
PROGRAM, TEXT = "bible-kjv", "bible-kjv-text"
VERSES = 31_102
WHOLE = "gen1:1-rev22:21"

# The program's short names, in the Bible's order.
BOOKS = tuple(
    """
    Ge Exo Lev Num Deu Josh Jdgs Ruth 1Sm 2Sm 1Ki 2Ki 1Chr 2Chr Ezra Neh Est Job Psa Prv Eccl SSol Isa Jer Lam Eze Dan
    Hos Joel Amos Obad Jonah Mic Nahum Hab Zep Hag Zec Mal Mat Mark Luke John Acts Rom 1Cor 2Cor Gal Eph Phi Col 1Th 2Th
    1Tim 2Tim Titus Phmn Heb Jas 1Pet 2Pet 1Jn 2Jn 3Jn Jude Rev
    """.split()
)

_VERSE = re.compile(r"([1-3]?[A-Za-z]+)\d+:\d+ (.*)")


def resolve(folder: str | Path | None = None) -> Path:
    """Return the folder that holds the books as plain text; fetch them if no folder has them."""
    return fetch.locate(
        "the King James Bible",
        folder,
        VARIABLE,
        (cache_folder(),),
        fetch.lacks(_files()),
        (_unpack_packages,),
        "On Debian or Ubuntu run:  sudo apt-get update, and try again\n"
        f"Elsewhere put the books (plain text, one verse a line, from https://www.gutenberg.org) into a folder as "
        f"{file_of(BOOKS[0])} to {file_of(BOOKS[-1])}, and run:  export {VARIABLE}=/that/folder",
        size="2.5 MB",
    )


def cache_folder() -> Path:
    """The folder in the cache for the books."""
    return fetch.cache_folder("bible")


def file_of(book: str) -> str:
    """Name of a book's file: its place in the Bible and its short name."""
    return f"{BOOKS.index(book) + 1:02d}_{book.lower()}.txt"


def _files() -> list[str]:
    """Names of all files, in the Bible's order."""
    return [file_of(book) for book in BOOKS]


def parse(printed: str) -> dict[str, str]:
    """The text of each book, one verse a line, from what the program prints: one verse a line after its place."""
    books: dict[str, list[str]] = {book: [] for book in BOOKS}
    for number, line in enumerate(printed.splitlines(), start=1):
        found = _VERSE.fullmatch(line)
        if found is None or found[1] not in books:
            raise UserError(f"{PROGRAM}: line {number} of its text is no verse: {line[:60]!r}")
        books[found[1]].append(found[2])
    count = sum(len(verses) for verses in books.values())
    if count != VERSES:
        raise UserError(f"{PROGRAM}: printed {count:,} verses, and the Bible has {VERSES:,}")
    return {book: "\n".join(verses) + "\n" for book, verses in books.items()}


def _unpack_packages() -> Path:
    """Download the two packages into temporary folders, and write the books into the cache as plain text."""
    with fetch.unpacked_package(PROGRAM) as root, fetch.unpacked_package(TEXT) as other:
        command = [str(root / "usr/bin/bible"), "-p", str(other / "usr/lib"), "-f", WHOLE]
        found = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=60)
        for book, text in parse(found.stdout).items():
            (root / file_of(book)).write_text(text, encoding="utf-8")
        return fetch.keep(root, _files(), cache_folder())


def main() -> int:
    """Fetch the books if they are missing, and print where they are."""
    folder = resolve()
    characters = sum(len((folder / name).read_text(encoding="utf-8")) for name in _files())
    print(f"{len(BOOKS)} books, {characters:,} characters in {folder}")
    return 0


if __name__ == "__main__":
    run_program(main)
