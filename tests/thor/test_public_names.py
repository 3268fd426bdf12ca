"""What ``import thor`` offers: each public name, imported when it is used, and nothing of MindSpore before."""

import ast
import subprocess
import sys

import pytest

import thor
from tests.support.paths import ROOT

INIT = ast.parse((ROOT / "thor" / "__init__.py").read_text(encoding="utf-8"))


def imported_for_type_checkers():
    block = next(node for node in INIT.body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_every_public_name_is_there_and_is_what_type_checkers_take_it_for():
    wanted = imported_for_type_checkers()
    assert sorted(wanted) == sorted(thor.__all__)
    for name, module in wanted.items():
        found = getattr(thor, name)
        assert getattr(found, "__module__", module) == module or found.__name__ == f"{module}.{name}"
    assert set(thor.__all__) <= set(dir(thor))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'thor' has no attribute 'THORR'"):
        thor.THORR  # noqa: B018


def test_importing_thor_starts_no_mindspore():
    code = "import sys, thor, thor.runtime.errors; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
