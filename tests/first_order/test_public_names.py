"""What ``import first_order`` offers: each public name, imported when it is used, and nothing of MindSpore before."""

import subprocess
import sys

import pytest

import first_order
from tests.support.paths import ROOT


def test_every_public_name_is_there():
    assert all(getattr(first_order, name).__name__ == name for name in first_order.__all__)
    assert set(first_order.__all__) <= set(dir(first_order))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'first_order' has no attribute 'Adamm'"):
        first_order.Adamm  # noqa: B018


def test_checking_a_number_starts_no_mindspore():
    code = "import sys, first_order.checks; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
