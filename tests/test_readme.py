"""README.md and its Chinese version say the same, as far as a program can tell; and what they name exists."""

import re
from itertools import groupby

import pytest

from tests.support.markdown import take_apart
from tests.support.paths import ROOT

ENGLISH, CHINESE = "README.md", "README_CN.md"
BOTH = pytest.mark.parametrize("name", [ENGLISH, CHINESE])

HEADING = re.compile(r"(#{1,6}) ")
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.ASCII)
PROGRAM = re.compile(r"(?<![\w./-])scripts/[\w/]+\.py\b", re.ASCII)


def split(name):
    """Code blocks, as lists of lines, and all other lines of a README."""
    blocks, others = take_apart(ROOT / name)
    return [block.lines for block in blocks], others


def text(name):
    """The README without any code, so that brackets in it are no links."""
    return re.sub(r"`[^`]*`", "", "\n".join(split(name)[1]))


def tables(name):
    """Per table and row, the numbers of each cell."""
    runs = groupby(split(name)[1], key=lambda line: line.startswith("|"))
    return [[cells(line) for line in run] for is_table, run in runs if is_table]


def cells(row):
    """Numbers of each cell of a table's row."""
    return [NUMBER.findall(cell) for cell in re.split(r"(?<!\\)\|", row.strip()[1:-1])]


def test_same_headings():
    english, chinese = ([m[1] for line in split(name)[1] if (m := HEADING.match(line))] for name in (ENGLISH, CHINESE))
    assert english[:2] == ["#", "##"]
    assert english == chinese


def test_same_code():
    english, chinese = split(ENGLISH)[0], split(CHINESE)[0]
    assert len(english) >= 5
    assert english == chinese


def test_same_pictures_and_links():
    assert PICTURE.findall(text(ENGLISH)) == PICTURE.findall(text(CHINESE)) != []
    """The Chinese README links to the Chinese page of a name where there is one, in place of the English page."""
    english, chinese = LINK.findall(text(ENGLISH))[1:], LINK.findall(text(CHINESE))[1:]
    translated = {path.name for path in (ROOT / "docs" / "zh").glob("*.md")}
    expected = [f"docs/zh/{name}" if (name := link.split("/")[-1]) in translated else link for link in english]
    assert sorted(chinese) == sorted(expected) != []


@pytest.mark.parametrize(("name", "link"), [(ENGLISH, f"[简体中文]({CHINESE})"), (CHINESE, f"[English]({ENGLISH})")])
def test_the_other_language_is_linked_below_the_title(name, link):
    assert [line for line in split(name)[1] if line][1] == link


def test_same_numbers_in_tables():
    english, chinese = tables(ENGLISH), tables(CHINESE)
    assert [len(table) for table in english] == [len(table) for table in chinese] != []
    for number, (ours, theirs) in enumerate(zip(english, chinese, strict=True), 1):
        for row, (left, right) in enumerate(zip(ours, theirs, strict=True), 1):
            assert left == right, f"table {number}, row {row}"


@BOTH
def test_links_and_pictures_of_the_repository_exist(name):
    targets = [target for pattern in (PICTURE, LINK) for target in pattern.findall(text(name))]
    paths = [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@BOTH
def test_programs_in_code_exist(name):
    """Those of code blocks, and of code within the text."""
    blocks, others = split(name)
    code = [line for block in blocks for line in block] + re.findall(r"`[^`]*`", "\n".join(others))
    programs = {path for part in code for path in PROGRAM.findall(part)}
    assert "scripts/train.py" in programs
    assert [path for path in sorted(programs) if not (ROOT / path).is_file()] == []
