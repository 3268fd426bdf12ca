"""The page of results: tables and pictures of the data beside it, under words that are kept."""

import pytest

from scripts.convergence import results, results_page, tables
from scripts.convergence.results_page import MARK
from tests.scripts.convergence.made import RESULTS
from thor.runtime.errors import UserError


def test_the_page_has_tables_and_pictures_of_the_data_under_its_words(tmp_path):
    results.write(RESULTS, tmp_path / results_page.DATA)
    path = tmp_path / results_page.PAGE
    path.write_text(f"# Title\n\nWords.\n\n{MARK}\n\nold\n")
    assert not results_page.up_to_date(tmp_path)
    results_page.write(tmp_path)
    assert results_page.up_to_date(tmp_path)
    text = path.read_text()
    assert text.startswith(f"# Title\n\nWords.\n\n{MARK}\n\nMeasured on: processor made up.\n\n## autoencoder\n\n")
    for name, found in RESULTS.tasks.items():
        assert tables.of_task(RESULTS.rules, name, found) in text
        assert f"(benchmark-{name}.png)" in text and (tmp_path / f"benchmark-{name}.png").is_file()
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
