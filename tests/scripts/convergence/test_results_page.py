"""The page of results: tables and pictures of the data beside it, under words that are kept."""

import pytest

from scripts.convergence import results, results_page, tables
from scripts.convergence.results_page import MARK
from tests.scripts.convergence.made import FULL, RESULTS
from thor.runtime.errors import UserError

CONTENDERS = {name: FULL.contenders[name] for name in ("adam", "muon")} | {
    "thor": FULL.contenders["thor"].model_copy(update={"space": {}, "tuned_as": "adam"})
}
TARGET = FULL.target.model_copy(update={"set_by": ["adam"]})
QUICK = FULL.quick.model_copy(update={"contenders": ["adam"]})
#: Of these rules the autoencoder has every run.
RULES = FULL.model_copy(
    update={"contenders": CONTENDERS, "quick": QUICK, "target": TARGET, "trials": 3, "test_seeds": [1, 2, 3]}
)
MADE = RESULTS.model_copy(update={"rules": RULES})


def test_the_page_has_tables_and_pictures_of_the_data_under_its_words(tmp_path):
    results.write(MADE, tmp_path / results_page.DATA)
    path = tmp_path / results_page.PAGE
    path.write_text(f"# Title\n\nWords.\n\n{MARK}\n\nold\n")
    assert not results_page.up_to_date(tmp_path)
    results_page.write(tmp_path)
    assert results_page.up_to_date(tmp_path)
    text = path.read_text()
    begun = "resnet8-128 (2 of 6 trials, 4 of 18 runs with test seeds)"
    assert text.startswith(
        f"# Title\n\nWords.\n\n{MARK}\n\nMeasured on: processor made up.\n\n"
        f"Begun, and not shown before the last run is done: {begun}.\n\n## autoencoder\n\n"
    )
    assert tables.of_task(RULES, "autoencoder", MADE.tasks["autoencoder"]) in text
    assert "(benchmark-autoencoder.png)" in text and "## resnet8" not in text
    assert [each.name for each in tmp_path.glob("*.png")] == ["benchmark-autoencoder.png"]
    results_page.write(tmp_path)
    assert path.read_text() == text


def test_a_page_without_the_mark_is_left_alone(tmp_path):
    results.write(RESULTS, tmp_path / results_page.DATA)
    (tmp_path / results_page.PAGE).write_text("# Title\n")
    with pytest.raises(UserError, match=r"benchmark\.md: lacks the line"):
        results_page.write(tmp_path)
    assert (tmp_path / results_page.PAGE).read_text() == "# Title\n"


def test_the_published_page_is_that_of_its_data():
    assert results_page.up_to_date(results_page.FOLDER)
