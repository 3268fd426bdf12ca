"""Damaged files are read or refused with an error that says so. THOR_FUZZ_CASES: how many of each kind; make fuzz."""

import os

import pytest

from tests.fuzz.cases import REFUSED, bench, cases_of
from tests.fuzz.targets import TARGETS

CASES = int(os.environ.get("THOR_FUZZ_CASES", "10"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damage_is_survived(target):
    with bench(target) as place:
        outcomes = [place.run(seed) for seed in range(cases_of(target, CASES))]  # what fails names target and seed
    if len(outcomes) >= 10:
        assert outcomes.count(REFUSED) >= len(outcomes) / 2, (
            "damage is mostly damage: a reader that takes all reads none"
        )


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_undamaged_file_is_read(target):
    with bench(target) as place:
        target.check(place.folder, target.read(place.folder))
