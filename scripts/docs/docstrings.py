"""An extension of griffe: brings the docstrings, which are written for Sphinx, into Markdown for the API page."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:class|func|mod|meth|attr):`~?([^`]+)`")
_FORMULA = re.compile(r":math:`([^`]+)`")
_FORMULAS = re.compile(r"^( *)\.\. math::\n((?:\1 +.*\n|\n)+)", re.MULTILINE)
#: "beta1, beta2: text", the text over as many lines as are indented below it
_SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)", re.MULTILINE)


class Markdown(Extension):
    """Rewrites every docstring as it is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one object, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """Return a docstring with references and formulas as code, and its example as a section that griffe knows.

    Formulas stay in LaTeX: what would draw them comes from the network.
    """
    text = _ROLE.sub(r"`\1`", text)
    text = _FORMULA.sub(lambda found: "`" + " ".join(found[1].split()) + "`", text)
    text = _FORMULAS.sub(_block, text + "\n").rstrip("\n")
    text = _SEVERAL.sub(lambda found: "\n".join(f"{found[1]}{n}: {found[3]}" for n in found[2].split(", ")), text)
    text = re.sub(r"^\.\. note::$", "Note:", text, flags=re.MULTILINE)
    return re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)


def _block(found: re.Match[str]) -> str:
    """A block of formulas as a fenced block of code."""
    lines = [line.strip() for line in found[2].strip("\n").splitlines() if line.strip()]
    return "\n".join(found[1] + line for line in ("```latex", *lines, "```")) + "\n\n"
