"""The errors that a package raises, read from its source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.paths import ROOT


@dataclass(frozen=True)
class Raised:
    """One ``raise``: where it stands, and the fixed parts of its message, in order."""

    file: str
    line: int
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        """The message, with an ellipsis for each part that is computed."""
        return " ".join("…".join(self.parts).split())

    @property
    def fragment(self) -> str:
        """The first eight words of the longest fixed part, by which the message is found on a page."""
        longest = max((" ".join(part.split()).strip(" :;,.(") for part in self.parts), key=len)
        return " ".join(longest.split()[:8]).strip(" :;,.(")


def raised_in(package: str) -> Iterator[Raised]:
    """Every error with a message that a package of the repository raises."""
    for file in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                yield Raised(str(file.relative_to(ROOT)), node.lineno, tuple(_fixed(node.exc.args[0])))


def _fixed(node: ast.expr) -> list[str]:
    """The fixed parts of a text, at least one; those beside each other are one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        parts = [""]
        for value in node.values:
            if isinstance(value, ast.Constant):
                parts[-1] += str(value.value)
            else:
                parts.append("")
        return parts
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _fixed(node.left), _fixed(node.right)
        return [*left[:-1], left[-1] + right[0], *right[1:]]
    return ["", ""]
