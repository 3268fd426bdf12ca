"""Writes the tables of docs/reference/settings.md: every setting, as described in scripts/settings.

    python scripts/docs/settings_tables.py            # run it after settings have changed
    python scripts/docs/settings_tables.py --check    # status 1 if the page has to be written anew

The text above the mark on the page is written by hand, and is kept.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pydantic import BaseModel, PlainValidator  # noqa: E402
from pydantic.fields import FieldInfo  # noqa: E402

from scripts.common.atomic_write import write_atomically  # noqa: E402
from scripts.settings.optimizer_sections import OPTIMIZER_SECTIONS  # noqa: E402
from scripts.settings.schedule_settings import Schedule  # noqa: E402
from scripts.settings.train_settings import Interval, Refresh, TrainSettings  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
MARK = "<!-- What follows is written by scripts/docs/settings_tables.py. -->"
#: Blocks that may be given by the value of one setting: the name of this setting, and its description.
SHORT: dict[type[BaseModel], tuple[str, str]] = {
    Schedule: ("shape", "a shape"),
    Refresh: ("preset", "a preset"),
    Interval: ("start", "a number of steps"),
}
#: The meanings of settings that every optimizer's section has.
COMMON = {
    "learning_rate": "Learning rate at its highest; the schedule goes from there.",
    "schedule": "How the learning rate moves over the run.",
    "weight_decay": "Weight decay; `decay_all` says of which weights.",
}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_PLAIN = {int: "whole number", float: "number", str: "text", bool: "true, false"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the page, or check it."""
    parser = argparse.ArgumentParser(
        prog="settings_tables.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; the status is 1 if the page would change")
    options = parser.parse_args(arguments)
    before = PAGE.read_text(encoding="utf-8")
    after = renewed(before)
    if not options.check:
        write_atomically(PAGE, after)
    elif after != before:
        print(f"{PAGE}: its tables are not those of the settings: run scripts/docs/settings_tables.py", file=sys.stderr)
        return 1
    return 0


def renewed(page: str) -> str:
    """Return the page with new tables."""
    head, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE}: the line {MARK!r} is missing: set it where the tables begin")
    return head + MARK + "\n\n" + "\n".join(_tables()).rstrip("\n") + "\n"


def _tables() -> Iterator[str]:
    """Yield the lines of all tables: the run, each section, and the blocks that several sections use."""
    yield from _table("The run", TrainSettings, "")
    for name in ("data", *OPTIMIZER_SECTIONS):
        section = type(getattr(TrainSettings(), name))
        yield from _table(f"Section {name}", section, f"{name}.")
    for block in SHORT:
        yield from _table(block.__name__, block, "")


def _table(title: str, block: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the lines of one table: heading, description of the block, and a row for each setting but sections."""
    own = meanings(block)
    yield from (f"## {title}", "", _first_paragraph(block), "")
    yield from ("| setting | allowed | default | meaning |", "|---|---|---|---|")
    for name, field in block.model_fields.items():
        if name not in ("data", *OPTIMIZER_SECTIONS) or block is not TrainSettings:
            default = "needed" if field.is_required() else f"`{_shown(field.get_default(call_default_factory=True))}`"
            cells = (f"`{prefix}{name}`", _allowed_in(field), default, own[name])
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def meanings(block: type[BaseModel]) -> dict[str, str]:
    """The meaning of each setting, from its class's docstring or from COMMON."""
    own = {name: words for name, words in COMMON.items() if name in block.model_fields} | documented(block)
    return {name: re.sub(r"\bNone\b", "null", words) for name, words in own.items()}  # YAML writes null


def documented(block: type[BaseModel]) -> dict[str, str]:
    """The entries under `Attributes:` in a class's docstring."""
    _, _, attributes = str(inspect.getdoc(block)).partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        first = re.match(r" {4}(\w+): (.+)", line)
        if first:
            name = first[1]
            found[name] = first[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found


def _first_paragraph(block: type[BaseModel]) -> str:
    return str(inspect.getdoc(block)).split("\n\n")[0]


def _shown(value: Any) -> str:
    """A default value as in YAML; of a block, the value of its setting in SHORT."""
    if isinstance(value, BaseModel):
        value = getattr(value, SHORT[type(value)][0])
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _allowed_in(field: FieldInfo) -> str:
    """The allowed values of a field, in words."""
    words = _allowed(field.annotation, field.metadata)
    null = not field.is_required() and field.default is None and not words.endswith("or null")
    return f"{words}, or null" if null else words


def _allowed(kind: Any, metadata: list[Any]) -> str:
    """The allowed values of a type with bounds, in words."""
    own = next((part.func for part in metadata if isinstance(part, PlainValidator)), None)
    if own is not None:  # the validator's docstring lists the allowed values
        words = str(inspect.getdoc(own)).rstrip(".")
        return words[0].lower() + words[1:]
    options = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        inner = [part for each in options[1:] for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
        return _allowed(options[0], inner)
    if origin is typing.Literal:
        return ", ".join(f"`{option}`" for option in options)
    if origin in (types.UnionType, typing.Union):
        return ", or ".join("null" if each is type(None) else _allowed(each, metadata) for each in options)
    if origin is list:
        return f"list of: {_allowed(options[0], [])}"
    if origin is dict:
        return "mapping"
    if kind in SHORT:
        name = kind.__name__
        return f"{SHORT[kind][1]}, or a block [{name}](#{name.lower()})"
    bounds = [f"{s} {getattr(part, key)}" for part in metadata for key, s in _BOUNDS.items() if hasattr(part, key)]
    return " ".join((_PLAIN[kind], ", ".join(bounds))).strip()


if __name__ == "__main__":
    sys.exit(main())
