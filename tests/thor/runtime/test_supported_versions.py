"""The table of supported versions, and the page that shows it."""

import re

from tests.support.paths import ROOT
from thor.runtime import supported_versions
from thor.runtime.supported_versions import RELEASES


def test_a_release_is_found_by_its_version_and_by_a_post_release():
    assert [supported_versions.release(each.version) for each in RELEASES] == list(RELEASES)
    assert supported_versions.release("2.7.1.post1") is supported_versions.release("2.7.1")
    for other in ("2.6.0", "2.10", "3.0.0", ""):
        assert supported_versions.release(other) is None


def test_releases_stand_from_the_oldest_to_the_newest_with_supported_pythons():
    numbers = [tuple(map(int, each.version.split("."))) for each in RELEASES]
    assert numbers == sorted(set(numbers)) and numbers[0] == (2, 7, 0) and numbers[-1] == (2, 10, 0)
    assert {python for each in RELEASES for python in each.pythons} == set(supported_versions.PYTHONS)


def test_the_page_has_the_table():
    page = (ROOT / "docs" / "reference" / "versions.md").read_text(encoding="utf-8")
    rows = [re.split(r" *\| *", row.strip("| ")) for row in page.splitlines() if re.match(r"\| 2\.\d", row)]
    of_ascend = [tuple(row) for row in rows if len(row) == 5]
    assert of_ascend == [
        (version, ", ".join(accepted), operators, cann or "unknown", driver or "unknown")
        for version, _, accepted, operators, cann, driver in RELEASES
    ]
    tried = {row[0]: row[1:] for row in rows if len(row) == 1 + len(supported_versions.PYTHONS)}
    assert list(tried) == [each.version for each in RELEASES]
    for each in RELEASES:
        for python, said in zip(supported_versions.PYTHONS, tried[each.version], strict=True):
            assert (said == "no wheel") == (python not in each.pythons)
            assert re.match(r"no wheel$|not run$|`make test`$|\d+ passed", said)
