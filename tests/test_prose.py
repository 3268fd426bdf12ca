"""The English of the pages for users: short sentences, few numbers in one."""

import re
from pathlib import Path

import pytest

from tests.support.markdown import take_apart
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
GUIDES = [
    ROOT / "README.md", DOCS / "index.md",
    *sorted((DOCS / "getting-started").glob("*.md")), *sorted((DOCS / "guides").glob("*.md")),
]  # fmt: skip
#: pages with sentences of any length: logs and tables of measurements, and Chinese
APART = ("dev", "results", "zh")
PAGES = [ROOT / "README.md", *(p for p in sorted(DOCS.rglob("*.md")) if p.relative_to(DOCS).parts[0] not in APART)]

MEAN, LONGEST, NUMBERS = 22, 40, 1
#: numbers that belong to a name
NAMES = re.compile(r"\b(Python|MindSpore|Ascend|Apache|AAAI|ImageNet|CUDA) \d+(\.\d+)*")


def sentences(page: Path) -> list[str]:
    """Sentences of a page's prose: no code, no tables, no headings; code within a sentence is one word."""
    text = re.sub(r"<!--.*?-->", "", "\n".join(take_apart(page)[1]), flags=re.DOTALL)
    parts: list[str] = [""]
    for line in text.split("\n"):
        if line.startswith(("#", "|", "![")) or not line.strip():
            parts.append("")
        elif re.match(r" *([-*>]|\d+\.) ", line):
            parts.append(re.sub(r"^ *([-*>]|\d+\.) ", "", line))
        else:
            parts[-1] += f" {line.strip()}"
    found = []
    for part in parts:
        part = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"``?[^`]+``?", "code", part)).replace("*", "")
        found += re.split(r"(?<=[.!?])[)\"']?\s+(?=[\"'(]?(?:[A-Z]|code\b))", NAMES.sub(r"\1", part.strip()))
    return [sentence for sentence in found if sentence.strip()]


def words(sentence: str) -> int:
    """Words of a sentence; signs by themselves are none."""
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def numbers(sentence: str) -> list[str]:
    """Numbers written in digits, but those that are part of a name, as in ResNet-50 or float32."""
    return re.findall(r"(?<![\w.,/-])\d[\d.,]*(?![\w])", sentence)


def name(page: Path) -> str:
    """The page's path, from the repository's root."""
    return str(page.relative_to(ROOT))


def test_sentences_numbers_and_words_are_counted_as_meant(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Heading of 7\n\nOne `a b c` and [a link](x.md). Two 3.5, 4!\n\n- A point\n  goes on.\n- ResNet-50 on "
        "Python 3.11.\n\n| 1 | 2 |\n\n```\ncode. Code.\n```\n"
    )
    found = sentences(page)
    assert found == ["One code and a link.", "Two 3.5, 4!", "A point goes on.", "ResNet-50 on Python."]
    assert [words(each) for each in found] == [5, 3, 4, 3]
    assert [len(numbers(each)) for each in found] == [0, 2, 0, 0]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_sentence_is_too_long(page):
    assert [(words(each), each) for each in sentences(page) if words(each) > LONGEST] == []


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_sentences_are_short_on_average(page):
    lengths = [words(each) for each in sentences(page)]
    assert sum(lengths) / len(lengths) < MEAN


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_a_sentence_has_one_number_at_most(page):
    assert [each for each in sentences(page) if len(numbers(each)) > NUMBERS] == []
