"""The page docs/results/zoo.md: a table of what scripts/bench/zoo.py has measured, below the text written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.common.atomic_write import write_atomically

MARK = "<!-- What follows is written by scripts/bench/zoo.py --table. -->"
COLUMNS = ("family", "network", "parameters", "captured", "with norms", "input", "Momentum, ms", "plain", "curvature",
           "refresh", "loss", "left out, with norms")  # fmt: skip
#: Shares of all parameters, in percent, below which a type that is left out is not named.
NAMED_FROM = 0.05
NOTHING = "-"


def write_page(page: Path, results: Mapping[str, Any]) -> None:
    """Write the table into a page, below its mark; a page without the mark, or none, gets it at its end."""
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    head, _, _ = before.partition(MARK)
    write_atomically(page, head + MARK + "\n\n" + "\n".join(lines_of(results)) + "\n")


def lines_of(results: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the table, with a row for each family, and of what could not be measured."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    families = results["families"]
    for name, found in families.items():
        yield f"| {' | '.join(row(name, found))} |"
    failed = {name: found["error"] for name, found in families.items() if "error" in found}
    if failed:
        yield from ("", "Not measured:", "", *(f"- {name}: {why}" for name, why in failed.items()))
    if "settings" in results:
        shown = ", ".join(f"{key} {value}" for key, value in (results["settings"] | results["machine"]).items())
        yield from ("", f"Measured with: {shown}.")


def row(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    """The cells of one family's row."""
    yield from (name, f"`{found['model']}`")
    structure = found.get("structure")
    if structure is None:
        yield from [NOTHING] * (len(COLUMNS) - 2)
        return
    total = structure["parameters"]
    yield f"{total / 1e6:.2f} M"
    yield from (percent(structure[key] / total) for key in ("captured", "captured_with_norms"))
    yield from _steps(found.get("steps"))
    yield left_out(structure)


def _steps(found: Mapping[str, Any] | None) -> Iterator[str]:
    """The cells of input, step times and losses."""
    if found is None:
        yield from [NOTHING] * 6
        return
    yield f"{found['batch']} x {found['image']}²"
    yield f"{found['ms']['Momentum']:.0f}"
    yield from (f"{found['ratio'][phase]:.2f} x" for phase in ("plain", "curvature", "refresh"))
    yield " → ".join(f"{loss:.2f}" for loss in found["loss"])


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
