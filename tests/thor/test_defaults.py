"""What THOR does where nothing is said: the defaults of docs/reference/thor.md's table, and the clock of factors."""

import inspect
import re

import pytest

import thor
from tests.support.networks import Mlp
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "thor.md").read_text(encoding="utf-8")


def rows():
    """Names and defaults of each row of the table of arguments."""
    table = PAGE.split("## Arguments of `THOR`")[1].split("\n\n")[1]
    for line in table.splitlines()[2:]:
        names, defaults = line.split("|")[1:3]
        yield re.findall(r"`(\w+)`", names), defaults


def test_the_table_has_the_defaults_of_the_signature():
    parameters = inspect.signature(thor.THOR).parameters
    told = set()
    for names, defaults in rows():
        told |= set(names)
        if not defaults.strip():
            assert all(parameters[name].default is inspect.Parameter.empty for name in names), names
            continue
        values = eval(f"[{defaults.replace('`', '')}]", {"TraceRule": thor.TraceRule})
        assert [parameters[name].default for name in names] == values, names
    assert told == set(parameters)


@pytest.mark.parametrize(
    ("interval", "decay", "steps"),
    [(100, 0.95, 10), (834, 0.95, 83), (20, 0.95, 2), (19, 0.95, 1), (1, 0.95, 1), (100, 0.0, 100), (7, 0.0, 7)],
)
def test_factors_are_gathered_ten_times_an_interval_or_once_without_an_average(interval, decay, steps):
    options = thor.THOR(Mlp(), 0.1, 0.1, interval=interval, factor_decay=decay).options
    assert options.gather_interval(0) == steps


def test_an_interval_that_grows_takes_its_gatherings_with_it():
    options = thor.THOR(Mlp(), 0.1, 0.1, interval=thor.GrowingInterval(1, 100, 1.5)).options
    assert [options.gather_interval(step) for step in (0, 38, 198, 10**6)] == [1, 2, 10, 10]
