"""docs/help/troubleshooting.md has the errors of thor that do not say themselves what was given and what is allowed."""

import re

import pytest

from tests.support.errors import Raised, raised_in
from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "help" / "troubleshooting.md").read_text(encoding="utf-8")
PAGE = " ".join(TEXT.split())
TABLES = TEXT.split("## No error")[0]
ERRORS = list(raised_in("thor"))
#: "NAME must be ..., but got ...": what is wrong and what is allowed stands in the message
ALLOWED = re.compile(r"\bmust\b")
#: Fixed parts of messages that speak for themselves: each names a file or flag, and what is wrong with it.
CLEAR = {
    "has no attribute", "cannot be read", "cannot be read as JSON", "no such file", "there are no layers", "lacks",
    "there are no factors", "environment lacks", "lacks block sizes", "unknown order or split in", "values", "it says",
    "a part is missing or wrong", "--measured", "without it there is a report too",
    "give batch,channels,... as positive integers, as in 8,3,224,224", "give a name that ends in .json; the",
    "the picture is written beside the profile; give", "give numbers with commas between them, as in",
    "give at least two different positive integers, as", "a collective of one process costs nothing; measure",
    "a block is not positive definite", 'split "block+mean" needs the mean of the rows',  # inside the profiler
}  # fmt: skip
#: Errors whose whole text is computed: what a user sees of each, on the page where it is not a file's own complaint.
COMPUTED = {
    "thor/cli/doctor.py": None,  # an exit status, and a folder that is not there
    "thor/cli/profile.py": None,  # an exit status
    "thor/cli/terminal.py": None,  # an exit status
    "thor/curvature/refresher.py": "the forward pass has called none of the captured layers",
    "thor/runtime/json_files.py": None,  # a word that JSON does not know, inside "cannot be read as JSON"
    "thor/step/graphs.py": "this loss and its gradients can be computed, but not while factors are gathered",
    "thor/train_step.py": "steps in a row were not finite, all skipped, training stopped at step",
}


def where(raised: Raised) -> str:
    return f"{raised.file}:{raised.line}: {raised.text}"


@pytest.mark.parametrize("error", [each for each in ERRORS if each.fragment], ids=lambda each: each.fragment[:60])
def test_an_error_is_on_the_page_or_speaks_for_itself(error):
    assert ALLOWED.search(error.text) or error.fragment in CLEAR or error.fragment in PAGE, where(error)


def test_errors_whose_text_is_computed_are_known():
    assert {each.file for each in ERRORS if not each.fragment} == set(COMPUTED)
    assert [text for text in COMPUTED.values() if text is not None and text not in PAGE] == []


def test_the_list_of_clear_errors_names_errors_that_there_are():
    assert len(ERRORS) > 200
    assert CLEAR - {each.fragment for each in ERRORS} == set()


def test_what_the_page_quotes_is_what_the_code_says():
    rows = re.findall(r"^\| (`.+?`) \| ", TABLES, re.MULTILINE)
    quoted = [part for row in rows for part in re.findall(r"`([^`]+)`", row)]
    files = [path for folder in ("thor", "scripts/data") for path in (ROOT / folder).rglob("*.py")]
    code = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in files)
    code = re.sub(r'"\s*f?"', "", code)  # a text that is written in several pieces is one
    assert len(quoted) > 80
    assert [text for text in quoted if max(text.split("…"), key=len).strip(" :;,.(") not in code] == []
