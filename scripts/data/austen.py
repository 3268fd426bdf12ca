"""Jane Austen's six novels (public domain), from the Debian package `r-cran-janeaustenr`.

The package is not installed: the novels in its archive go into the cache as plain text, one file per novel. A folder
named by the user or by AUSTEN_DIR must hold those six files.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from scripts.common.errors import run_program
from scripts.data import fetch
from thor.runtime.errors import UserError

VARIABLE = "AUSTEN_DIR"
PACKAGE = "r-cran-janeaustenr"
DATABASE = Path("usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")

# The file of each novel (without .txt), and the title that its text starts with.
NOVELS = {
    "emma": "EMMA",
    "mansfield_park": "MANSFIELD PARK",
    "northanger_abbey": "NORTHANGER ABBEY",
    "persuasion": "Persuasion",
    "pride_and_prejudice": "PRIDE AND PREJUDICE",
    "sense_and_sensibility": "SENSE AND SENSIBILITY",
}

# R serialises a character vector as its type and its length, followed by its strings (the lines of a novel). A string
# is its type (lowest byte) with flags (higher bytes), its length and its bytes. All numbers are big-endian, four bytes.
_VECTOR, _STRING, _LATIN_1 = 16, 9, 0x4000
_ASCII_STRING = (0x40000 | _STRING).to_bytes(4, "big")


def resolve(folder: str | Path | None = None) -> Path:
    """Return the folder that holds the novels as plain text; fetch them if no folder has them."""
    return fetch.locate(
        "the set of Austen's novels",
        folder,
        VARIABLE,
        (cache_folder(),),
        fetch.lacks(_files()),
        (_unpack_package,),
        "On Debian or Ubuntu run:  sudo apt-get update, and try again\n"
        f"Elsewhere put {', '.join(_files())} (plain text, from https://www.gutenberg.org) into "
        f"a folder, and run:  export {VARIABLE}=/that/folder",
        size="1.6 MB",
    )


def cache_folder() -> Path:
    """The folder in the cache for the novels."""
    return fetch.cache_folder("austen")


def parse(database: bytes) -> dict[str, str]:
    """Return title and text of each novel in the package's database.

    The database is a sequence of records. A record is the length of its uncompressed content (four bytes), then the
    content compressed by zlib.
    """
    novels: dict[str, str] = {}
    while database:
        size, stream = int.from_bytes(database[:4], "big"), zlib.decompressobj()
        try:
            record = stream.decompress(database[4:])
        except zlib.error as error:
            raise UserError(f"{DATABASE.name}: broken after {len(novels)} novels ({error})") from None
        if not stream.eof or len(record) != size:
            raise UserError(f"{DATABASE.name}: truncated after {len(novels)} novels")
        lines = _lines(record)
        novels[next(line for line in lines if line)] = "\n".join(lines)
        database = stream.unused_data
    return novels


def _lines(record: bytes) -> list[str]:
    """Return the strings of a record. It must be one character vector whose first string is ASCII."""
    offset = record.find(_ASCII_STRING) - 8
    if offset < 0 or _number(record, offset) != _VECTOR:
        raise UserError(f"{DATABASE.name}: holds something else than vectors of strings")
    lines: list[str] = []
    count, offset = _number(record, offset + 4), offset + 8
    for _ in range(count):
        kind, size = _number(record, offset), _number(record, offset + 4)
        if kind & 0xFF != _STRING:
            raise UserError(f"{DATABASE.name}: value {len(lines)} of {count} is no string")
        first, offset = offset + 8, offset + 8 + size
        lines.append(record[first:offset].decode("latin-1" if kind & _LATIN_1 else "utf-8"))
    return lines


def _number(record: bytes, offset: int) -> int:
    """The four-byte big-endian number at an offset."""
    return int.from_bytes(record[offset : offset + 4], "big")


def _file(name: str) -> str:
    """Name of a novel's file."""
    return f"{name}.txt"


def _files() -> list[str]:
    """Names of all files."""
    return [_file(name) for name in NOVELS]


def _unpack_package() -> Path:
    """Download the package into a temporary folder, and write its novels into the cache as plain text."""
    with fetch.unpacked_package(PACKAGE) as root:
        novels = parse((root / DATABASE).read_bytes())
        for name, title in NOVELS.items():
            if title not in novels:
                raise UserError(f"{PACKAGE}: has no novel {title!r}, only {', '.join(novels)}")
            (root / _file(name)).write_text(novels[title], encoding="utf-8")
        return fetch.keep(root, _files(), cache_folder())


def main() -> int:
    """Fetch the novels if they are missing, and print where they are."""
    folder = resolve()
    characters = sum(len((folder / name).read_text(encoding="utf-8")) for name in _files())
    print(f"{len(NOVELS)} novels, {characters:,} characters in {folder}")
    return 0


if __name__ == "__main__":
    run_program(main)
