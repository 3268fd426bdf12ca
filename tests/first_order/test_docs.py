"""The examples in the docstrings, run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "least"),
    [
        ("adam", 15),
        ("momentum", 10),
        ("adafactor.optimizer", 14),
        ("muon.optimizer", 17),
        ("muon.newton_schulz", 4),
        ("soap.update", 9),
        ("soap.optimizer", 7),
    ],
)
def test_examples_print_what_they_say(module, least):
    result = doctest.testmod(importlib.import_module(f"first_order.{module}"))
    assert result.failed == 0 and result.attempted >= least
