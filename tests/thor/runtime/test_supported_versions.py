"""The table of supported versions."""

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
