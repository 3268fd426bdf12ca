"""docs/reference/api.md: every public name has a docstring and an entry, and docstrings become Markdown."""

import importlib
import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
PUBLIC = [
    f"{package}.{name}" for package in ("thor", "first_order") for name in importlib.import_module(package).__all__
]


def test_the_page_has_each_public_name_once_and_no_other():
    assert sorted(re.findall(r"^::: (\S+)$", PAGE, flags=re.MULTILINE)) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring(name):
    package, _, member = name.partition(".")
    found = getattr(importlib.import_module(package), member)
    text = vars(found).get("__doc__") if isinstance(found, type) else found.__doc__  # a class inherits its parent's
    assert len((text or "").split()) >= 4


def test_docstrings_become_markdown():
    docstrings = pytest.importorskip("scripts.docs.docstrings", reason="griffe comes with mkdocstrings")
    text = """A :class:`thor.THOR` of :math:`x^2`.

.. math::
    a &= b \\\\
    c &= d

Args:
    one, two: of both,
        on two lines.
    three: alone.

Example:
    >>> 1
    1

.. note::
    So.
"""
    assert (
        docstrings.markdown(text)
        == """A `thor.THOR` of `x^2`.

```latex
a &= b \\\\
c &= d
```

Args:
    one: of both,
        on two lines.
    two: of both,
        on two lines.
    three: alone.

Examples:
    >>> 1
    1

Note:
    So."""
    )
