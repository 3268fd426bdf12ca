"""The page docs/results/zoo.md: a table of what scripts/bench/zoo.py has measured, below the text written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.common.atomic_write import write_atomically

MARK = "<!-- What follows is written by scripts/bench/zoo.py --table. -->"
COLUMNS = ("family", "network", "parameters", "captured", "with norms", "input", "loss")
TIMED = ("Momentum, ms", "plain", "curvature", "refresh")  # of compiled steps, if there are any in the results
LAST = "left out, with norms"
#: Shares of all parameters, in percent, below which a type that is left out is not named.
NAMED_FROM = 0.05
NOTHING = "-"


def write_page(page: Path, results: Mapping[str, Any]) -> None:
    """Write the table into a page, below its mark; a page without the mark, or none, gets it at its end."""
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    head, _, _ = before.partition(MARK)
    write_atomically(page, head + MARK + "\n\n" + "\n".join(lines_of(results)) + "\n")


def lines_of(results: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the table, with a row for each family, and of what could not be measured, and how it was done."""
    families = results["families"]
    timed = any("steps" in found for found in families.values())
    columns = (*COLUMNS, *(TIMED if timed else ()), LAST)
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for name, found in families.items():
        yield f"| {' | '.join(row(name, found, timed))} |"
    failed = {name: found["error"] for name, found in families.items() if "error" in found}
    if failed:
        yield from ("", "Not measured:", "", *(f"- {name}: {why}" for name, why in failed.items()))
    if "conditions" in results:
        yield from ("", how(results["conditions"], timed))


def row(name: str, found: Mapping[str, Any], timed: bool) -> Iterator[str]:
    """The cells of one family's row."""
    yield from (name, f"`{found['model']}`")
    structure = found.get("structure")
    if structure is None:
        yield from [NOTHING] * 3
    else:
        total = structure["parameters"]
        yield f"{total / 1e6:.2f} M"
        yield from (percent(structure[key] / total) for key in ("captured", "captured_with_norms"))
    yield from _trained(found.get("trained"))
    if timed:
        yield from _steps(found.get("steps"))
    yield NOTHING if structure is None else left_out(structure)


def _trained(found: Mapping[str, Any] | None) -> Iterator[str]:
    """The cells of input and losses."""
    if found is None:
        yield from [NOTHING] * 2
        return
    yield f"{found['batch']} x {found['image']}²"
    yield " → ".join(f"{loss:.2f}" for loss in found["loss"])


def _steps(found: Mapping[str, Any] | None) -> Iterator[str]:
    """The cells of compiled steps."""
    if found is None:
        yield from [NOTHING] * len(TIMED)
        return
    yield f"{found['ms']['Momentum']:.0f}"
    yield from (f"{found['ratio'][phase]:.2f} x" for phase in TIMED[1:])


def how(conditions: Mapping[str, Any], timed: bool) -> str:
    """How the table was measured."""
    steps = f"{conditions['curvature steps']} curvature steps and a plain one on one batch, operator by operator"
    text = f"The losses are those before and after {steps}."
    if timed:
        text += " Times are medians of compiled steps, and ratios are to Momentum's step in the same round."
    return f"{text} Measured on a CPU with: {', '.join(f'{name} {value}' for name, value in conditions.items())}."


def left_out(structure: Mapping[str, Any]) -> str:
    """What is left out with ``norms=True``, by type and reason, with shares of all parameters."""
    total, parts, rest = structure["parameters"], [], 0.0
    for each in structure["left_out"]:
        share = 100 * each["parameters"] / total
        if share >= NAMED_FROM:
            count = "" if each["layers"] == 1 else f"{each['layers']} "
            parts.append(f"{count}`{each['type']}` {share:.2g} %: {each['reason']}")
        else:
            rest += share
    if len(structure["left_out"]) > len(parts):
        parts.append(f"others, below {NAMED_FROM:g} % each")
    return "; ".join(parts) or "nothing"


def percent(share: float) -> str:
    """A share in percent, never rounded up to 100."""
    return "100 %" if share == 1 else f"{int(1e4 * share) / 100:.2f} %"
