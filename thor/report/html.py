"""One self-contained HTML page about a training run: ``thor report RUN``.

The page is made from the files in a run's folder: ``metrics.jsonl`` (one JSON object per line, see metrics_file.py)
and, if present, ``summary.json`` and ``config.yaml``. Its style and its figures (SVG) are inline; it has no script and
loads nothing.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thor.report import figures
from thor.report.metrics_file import Line, read_lines
from thor.runtime.errors import UserError
from thor.runtime.json_files import parse

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto; max-width: 1080px;
       padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.about { color: #555; margin: 0 0 1rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; }
figcaption { color: #555; font-size: .9rem; }
table { border-collapse: collapse; margin: .3rem 0; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: .85rem; }
.wide { overflow-x: auto; }
"""


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run's folder.

    Attributes:
        name: of the folder.
        lines: of ``metrics.jsonl``.
        summary: ``summary.json``; empty if there is none.
        configuration: text of ``config.yaml``; empty if there is none.
    """

    name: str
    lines: list[Line]
    summary: dict[str, Any]
    configuration: str

    def of(self, *kinds: str) -> list[Line]:
        """The lines whose ``kind`` is one of ``kinds``."""
        return [line for line in self.lines if line.get("kind") in kinds]


def read(folder: Path) -> RunFiles:
    """Read the files of a run; only ``metrics.jsonl`` is required.

    Raises:
        UserError: if it is missing or has no complete line, or if a file cannot be used.
    """
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise UserError(f"{folder}: no run to report on, {metrics.name} is missing")
    lines = read_lines(metrics)
    if not lines:
        raise UserError(f"{metrics}: holds no complete line yet")
    summary, config = folder / "summary.json", folder / "config.yaml"
    about = _read_summary(summary) if summary.is_file() else {}
    # The configuration is only displayed, so bytes that are not UTF-8 are replaced instead of refused.
    configuration = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    return RunFiles(folder.resolve().name, lines, about, configuration)


def _read_summary(path: Path) -> dict[str, Any]:
    """The JSON object in summary.json; raises UserError if there is none."""
    try:
        about = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}; without it there is a report too") from None
    if not isinstance(about, dict):
        raise UserError(f"{path}: no summary of a run; without it there is a report too")
    return about


def write(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run to ``out``, by default ``report.html`` in its folder, and return the path."""
    run = read(folder)
    try:
        page = render(run)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # The lines of metrics.jsonl have been checked, so the fault lies in the summary.
        summary, why = folder / "summary.json", f"{type(error).__name__}: {error}"
        raise UserError(
            f"{summary}: a part is missing or wrong ({why}); without the file there is a report too"
        ) from error
    target = out or folder / "report.html"
    target.write_text(page, encoding="utf-8")
    return target


def render(run: RunFiles) -> str:
    """The HTML page of a run."""
    sections = [
        ("Results", _results(run)),
        ("Curves", _figure(figures.curves(run.lines), "Loss of single batches and of epochs; the metric of the test "
                           "set after each evaluation.")),
        ("Layers", _layers(run)),
        ("Time", _time(run)),
        ("Memory", _memory(run)),
        ("Configuration", f"<pre>{html.escape(run.configuration)}</pre>" if run.configuration else ""),
    ]  # fmt: skip
    body = "\n".join(f"<section><h2>{title}</h2>\n{content}</section>" for title, content in sections if content)
    title = html.escape(run.name)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n</head>\n'
        f'<body>\n<h1>{title}</h1>\n<p class="about">{_about(run.summary)}</p>\n{body}\n</body>\n</html>\n'
    )


def _about(summary: dict[str, Any]) -> str:
    """One line about the run: network, optimizer, weights, batch size, seed, device and how it ended."""
    if not summary:
        return "The run is under way, or was killed: it has no summary yet."
    parts = [
        f"{summary.get('network', '?')} with {summary.get('optimizer', '?')}",
        f"{summary['weights']:,} weights" if "weights" in summary else "",
        f"batch {summary.get('batch_size', '?')}",
        f"seed {summary.get('seed', '?')}",
        f"{summary.get('device', '?')}, MindSpore {summary.get('mindspore', '?')}",
        "finished" if summary.get("finished") else "ended early",
    ]
    return html.escape(" · ".join(part for part in parts if part))


def _results(run: RunFiles) -> str:
    """A table with one row for each epoch or evaluation."""
    rows = run.of("epoch", "eval")
    if not rows:
        return "<p>No epoch is completed yet.</p>"
    columns = [key for key in figures.RESULTS if any(key in row for row in rows)]
    cells = [[_value(key, row.get(key)) for key in columns] for row in rows]
    return _table([figures.RESULTS[key] for key in columns], cells)


def _layers(run: RunFiles) -> str:
    """A figure of each layer's traces and decisions, and a table of their counts; "" without refreshes."""
    decisions = run.of("refresh")
    if not decisions:
        return ""
    picture = _figure(
        figures.traces(decisions),
        "Trace of each layer's damped Fisher block at each candidate refresh, and what was decided: a dot, the inverse "
        "or eigenbasis was renewed; a bar, it was kept; a cross, the layer stopped for good.",
    )
    memory = run.summary.get("memory", {}).get("curvature", {})
    rows = []
    for layer in dict.fromkeys(line["layer"] for line in decisions):
        own = [line for line in decisions if line["layer"] == layer]
        counts = [sum(line["decision"] == decision for line in own) for decision in ("UPDATE", "KEEP")]
        stopped = next((str(line["step"]) for line in own if line["decision"] == "STOP"), "")
        size = f"{memory[layer] / 1024:.1f}" if layer in memory else ""
        rows.append([layer, *(str(count) for count in counts), stopped, f"{own[-1]['trace']:.4g}", size])
    heads = ["layer", "renewed", "kept", "stopped at step", "last trace", "curvature, KiB"]
    return picture + _table(heads, rows)


def _time(run: RunFiles) -> str:
    """A figure and a table of the seconds of each phase; "" without them."""
    phases: dict[str, Sequence[float]] = run.summary.get("phases", {})
    if not phases:
        return ""
    total = sum(seconds for _, seconds in phases.values())
    rows = [
        [name, f"{count:.0f}", f"{seconds:.2f}", f"{seconds / count * 1e3:.1f}", f"{seconds / total:.1%}"]
        for name, (count, seconds) in sorted(phases.items(), key=lambda item: -item[1][1])
        if count
    ]
    caption = "What the compiler took of a step is counted as compiling."
    skew = run.summary.get("skew")
    if skew:
        caption += (
            f" {skew['refreshes']} refreshes were shared out among the ranks; the fastest waited for the slowest "
            f"{skew['median_s'] * 1e3:.1f} ms in the median, {skew['max_s'] * 1e3:.1f} ms at most."
        )
    return _figure(figures.phases(phases), caption) + _table(["phase", "times", "s", "ms each", "share"], rows)


def _memory(run: RunFiles) -> str:
    """A table of the memory, in MiB, of weights, state and averages, and of the peak; "" without a summary of it."""
    memory = run.summary.get("memory", {})
    if not memory:
        return ""
    names = {"weights": "weights", "optimizer": "optimizer's state", "average": "averaged weights"}
    rows = [[text, f"{memory[key] / 2**20:.1f}"] for key, text in names.items() if memory.get(key)]
    if memory.get("curvature"):
        rows.append(["of the optimizer's state: curvature", f"{memory['curvature']['total'] / 2**20:.1f}"])
    rows.append(["peak of the whole process", f"{memory['peak'] / 2**20:.1f}"])
    return _table(["what", "MiB"], rows)


def _value(key: str, value: Any) -> str:
    """The text of one cell in the table of results."""
    if value is None:
        return ""
    if key in ("test_accuracy", "test_top5"):
        return f"{value:.2%}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>\n" if svg else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose other columns are numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = ["", *[' class="number"'] * (len(cells) - 1)]
        return "<tr>" + "".join(
            f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        ) + "</tr>"  # fmt: skip

    body = "\n".join(line("td", row) for row in rows)
    return f'<div class="wide"><table>\n<thead>{line("th", heads)}</thead>\n<tbody>\n{body}\n</tbody></table></div>\n'
