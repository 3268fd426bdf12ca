"""What THOR does where nothing is said: the defaults of docs/reference/thor.md's table, and the clock of factors."""

import inspect
import re

import pytest

import thor
from tests.support.networks import Mlp
from tests.support.paths import ROOT
from thor.settings.kinds import DEFAULTS, WITHOUT_DAMPING

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


def test_the_guide_to_tuning_has_the_defaults_of_the_code():
    """Its table of clocks, a column for eigenbases, inverses without a damping, and inverses with one."""
    page = (ROOT / "docs" / "guides" / "tuning.md").read_text(encoding="utf-8")
    table = page.split("| setting | in eigenbases |")[1].split("\n\n")[0].splitlines()[2:]
    told = {re.findall(r"`(\w+)`", row.split("|")[1])[0]: row.split("|")[2:5] for row in table}
    inverse = DEFAULTS["inverse"]
    columns = [DEFAULTS["eigenbasis"], inverse | WITHOUT_DAMPING, inverse]
    for name in ("interval", "factor_decay"):
        cells, before = [], ""
        for cell in told[name]:
            before = before if "the same" in cell else cell.strip(" `")
            cells.append(eval(before, {"GrowingInterval": thor.GrowingInterval}))
        assert cells == [column[name] for column in columns]
    assert {cell.strip() for cell in told["factor_interval"]} == {"a tenth of `interval`", "a tenth"}
    share = inspect.signature(thor.THOR).parameters["factor_share"].default
    assert [float(cell) for cell in told["factor_share"]] == [share] * 3
    assert f"TraceRule(update={inverse['refresh'].update}, stop={inverse['refresh'].stop})" in page
    assert DEFAULTS["eigenbasis"]["refresh"] == thor.TraceRule.thor_nt()


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
