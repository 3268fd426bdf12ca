"""The report of a run: complete, self-contained, well-formed, and safe against odd names."""

import json
import re
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from thor.cli.app import app
from thor.report.html import read, render, write
from thor.runtime.errors import UserError

VOID = {"meta", "br", "img", "link", "hr"}
LAYERS = ["conv1", "fc & <b>last</b>"]


def run_folder(tmp_path, summary=True, refreshes=True):
    """What a run of two epochs leaves."""
    lines = [
        {"kind": "step", "step": s, "epoch": s / 10, "loss": 3.0 / s, "ms_per_step": 9.0, "seconds": s / 100}
        for s in range(1, 21)
    ]
    for step, decision in ((1, "UPDATE"), (8, "KEEP"), (15, "STOP")):
        for layer in LAYERS:
            values = {"layer": layer, "trace": 5.0 / step, "change": None, "decision": decision}
            lines.append({"kind": "refresh", "step": step, **values})
    for epoch in (1, 2):
        scores = {"train_loss": 1.0 / epoch, "test_loss": 1.2 / epoch, "test_accuracy": 0.4 * epoch, "test_top5": 0.9}
        lines.append({"kind": "epoch", "step": 10 * epoch, "epoch": epoch, **scores, "seconds": 0.2})
    if not refreshes:
        lines = [line for line in lines if line["kind"] != "refresh"]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "st')
    (tmp_path / "config.yaml").write_text("network: a<b>c\nout: runs/x\n")
    if summary:
        about = {
            "network": "lenet5",
            "optimizer": "thor",
            "weights": 61706,
            "finished": True,
            "skew": {"refreshes": 3, "median_s": 0.0125, "max_s": 0.5},
            "phases": {"plain": [18, 1.5], "compiling": [2, 9.0], "data": [20, 0.1]},
            "memory": {
                "weights": 2**20,
                "optimizer": 2**21,
                "average": 0,
                "curvature": {LAYERS[0]: 1024, "total": 4096},
                "peak": 2**28,
            },
        }
        (tmp_path / "summary.json").write_text(json.dumps(about))
    return tmp_path


class Page(HTMLParser):
    """Checks that tags are closed in order; keeps ids, tags, addresses, and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.tags, self.addresses, self.words = [], [], [], [], []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.addresses += [found[key] for key in ("href", "src", "xlink:href") if key in found]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        self.words.append(data)


def test_page_has_everything_and_loads_nothing(tmp_path):
    text = render(read(run_folder(tmp_path)))
    page = Page(text)
    assert page.tags.count("svg") == 3
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    assert len(page.ids) == len(set(page.ids)), "an id stands once on a page"
    assert all(address.startswith("#") for address in page.addresses)
    assert {address[1:] for address in page.addresses} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    words = " ".join(page.words)
    for expected in ("Results", "Curves", "Layers", "Time", "Memory", "Configuration", "80.00%", "compiling", "256.0"):
        assert expected in words
    assert "network: a<b>c" in words and LAYERS[1] in words, "names are text and no markup"
    assert "the fastest waited for the slowest 12.5 ms in the median, 500.0 ms at most" in words
    assert "61,706 weights" in words and "finished" in words


def test_a_run_under_way_has_a_page_too(tmp_path):
    page = Page(render(read(run_folder(tmp_path, summary=False, refreshes=False))))
    words = " ".join(page.words)
    assert "has no summary yet" in words and "Layers" not in words and "Curves" in words


def test_command(tmp_path):
    result = CliRunner().invoke(app, ["report", str(run_folder(tmp_path))])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert write(tmp_path, tmp_path / "other.html") == tmp_path / "other.html"
    missing = CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")])
    assert missing.exit_code == 2


@pytest.mark.parametrize(
    "text, message",
    [('{"kind": "step"}\n{oops}\n', "line 2: not JSON"), ("", "holds no complete line yet"), (None, "is missing")],
)
def test_errors(tmp_path, text, message):
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        read(tmp_path)
