"""The documentation: every Python block runs, links lead somewhere, the site builds.

A page's blocks are one program. It is written to a file, because functions that MindSpore compiles must have a source
to be read again, and stands at the lines it has on the page, so that a traceback names the page's line.
"""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import yaml
from mindspore import nn

import thor
from scripts import train
from scripts.convergence import measures, results, results_page, tables
from scripts.docs import repository_pages
from tests.support.markdown import take_apart
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"
README_TEXT = README.read_text(encoding="utf-8")


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page, each with empty lines before it up to its own line."""
    programs = [block for block in take_apart(page)[0] if block.language == "python"]
    return ["\n" * block.line + "\n".join(block.lines[1:-1]) + "\n" for block in programs]


def merged(parts: list[str]) -> str:
    """Blocks as one program, each line where it stands on the page."""
    lines: list[str] = []
    for part in parts:
        own = part.splitlines()
        lines += own[len(lines) :]
    return "\n".join(lines) + "\n"


def run(program: str, path: Path, names: dict | None = None) -> dict:
    path.write_text(program, encoding="utf-8")
    return runpy.run_path(str(path), init_globals=names, run_name=path.stem)


def name_of(page: Path) -> str:
    """The page's path, from the repository's root."""
    return str(page.relative_to(ROOT))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Pages write checkpoints into the working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_of)
def test_the_blocks_of_a_page_run_in_order(page, tmp_path):
    run(merged(blocks(page)), tmp_path / f"page_{page.stem}.py")


# -- the README --------------------------------------------------------------------------------------------------------


NUMBER = re.compile(r"\d+\.\d+|\d+")


def test_the_quickstart_of_the_readme_prints_what_stands_below_it(tmp_path, capsys):
    (block,) = blocks(README)
    (output,) = [each.lines[1:-1] for each in take_apart(README)[0] if each.language == "text"]
    after = run(block, tmp_path / "readme_quickstart.py")
    printed = capsys.readouterr().out.splitlines()
    assert [NUMBER.sub("", line) for line in printed] == [NUMBER.sub("", line) for line in output]
    found, told = ([float(n) for line in lines for n in NUMBER.findall(line)] for lines in (printed, output))
    np.testing.assert_allclose(found, told, rtol=0.1, atol=0.02)
    assert len(told) == 8 and after["optimizer"].step == 61


def test_what_replaces_another_optimizer_in_the_readme_is_made_and_steps():
    """The table's second column, with the names that its first column has."""
    rows = [line.split("|")[2] for line in prose(README).splitlines() if re.match(r"\| .*`.*`.* \| `", line)]
    calls = [re.findall(r"`([^`]+)`", row)[0] for row in rows if "thor.THOR(" in row or "thor.TrainStep(" in row]
    assert len(calls) == 3
    loss_fn, lr = nn.CrossEntropyLoss(), 0.01
    x, y = np.ones((4, 5), np.float32), np.zeros(4, np.int32)
    for call in calls:
        net = nn.Dense(5, 3)
        names = {"thor": thor, "ms": ms, "net": net, "lr": lr, "loss_fn": loss_fn}
        if "TrainStep" in call:
            names["optimizer"] = thor.THOR(net, lr)
        made = eval(call, names)
        if isinstance(made, ms.Model):
            made.train(1, ms.dataset.NumpySlicesDataset({"x": x, "y": y}).batch(4), dataset_sink_mode=False)
        else:
            assert np.isfinite(float(thor.TrainStep(net, loss_fn, made)(x, y)))


@pytest.mark.parametrize("config", ["quickstart_thor", "resnet50_imagenet_thor_ascend"])
def test_the_commands_of_the_readme_are_taken(config, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (line,) = re.findall(rf"^python scripts/train\.py (--config scripts/config/{config}\.yaml.*)$", README_TEXT, re.M)
    arguments = [each for each in shlex.split(line) if each != "--dry-run"]
    status = train.main([*arguments, "--dry-run"])
    shown = capsys.readouterr()
    assert status == (2 if "MISSING HERE" in shown.out + shown.err else 0)


def test_the_readme_is_short_and_says_where_it_ran_at_once():
    lines = README_TEXT.splitlines()
    assert len(lines) <= 180
    assert any("Ascend" in line and "never" in line for line in lines[:20])
    pictures = re.findall(r"^!\[", README_TEXT, flags=re.MULTILINE)
    results = README_TEXT.split("## Results")[1].split("\n## ")[0]
    assert len(pictures) == 1 and results.count("\n|---") == 1 and len(re.findall(r"^- ", results, re.MULTILINE)) == 3


def test_the_numbers_of_the_readme_are_those_of_the_benchmark():
    """A row for each finished task: values at equal budget, and THOR's costs as shares of the lowest of first order."""
    found = results.read(results_page.FOLDER / results_page.DATA)
    finished = [name for name in found.tasks if name not in results_page.begun(found)]
    table = README_TEXT.split("| task |")[1].split("\n\n")[0]
    rows = [[cell.strip(" *") for cell in row.split("|")[2:-1]] for row in table.splitlines()[2:]]
    assert len(rows) == len(finished)
    for (best, muon, soap, own, epochs, seconds), name in zip(rows, finished, strict=True):
        task, contenders = found.rules.tasks[name], found.tasks[name].contenders
        ends = {key: measures.equal_budget(task, each.equal_budget).final.median for key, each in contenders.items()}
        costs = {
            key: measures.to_target(task, each.to_target, found.tasks[name].target) for key, each in contenders.items()
        }
        choose = max if task.higher_is_better else min
        setter = choose(found.rules.target.set_by, key=lambda key, ends=ends: ends[key])
        shown = {key: tables.value(task, end).replace("%", " %") for key, end in ends.items()}
        assert best == f"{shown[setter]} ({found.rules.contenders[setter].title})"
        assert [muon, soap, own] == [shown["muon"], shown["soap"], shown["thor"]]
        others = measures.first_order(found.rules)
        for told, cost in ((epochs, "epochs"), (seconds, "with_compiling")):
            lowest = min(getattr(costs[key], cost) for key in others)
            assert told == f"{getattr(costs['thor'], cost) / lowest:.2f}"


# -- the site ----------------------------------------------------------------------------------------------------------


def pages_of(nav) -> list[str]:
    """File names in the navigation, depth first."""
    if isinstance(nav, str):
        return [nav]
    return [name for item in (nav.values() if isinstance(nav, dict) else nav) for name in pages_of(item)]


def test_the_navigation_names_exactly_the_pages_there_are():
    named = pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    made = list(repository_pages.PAGES.values())
    assert sorted(named) == sorted([str(page.relative_to(DOCS)) for page in PAGES] + made)
    assert named[0] == "index.md"


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return "\n".join(take_apart(page)[1])


def anchors(page: Path) -> set[str]:
    """What headings can be linked to, in plain words: lower case, hyphens for spaces."""
    heads = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, README], ids=name_of)
def test_links_and_pictures_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.is_file(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


def test_every_picture_is_shown():
    """On a page of its own folder, where a link to it is its name alone."""
    pictures = sorted(DOCS.rglob("*.png"))
    shown = {folder: "".join(prose(page) for page in folder.glob("*.md")) for folder in {p.parent for p in pictures}}
    assert pictures
    assert [str(p.relative_to(DOCS)) for p in pictures if f"({p.name})" not in shown[p.parent]] == []


def test_the_site_builds_and_needs_no_network(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    result = subprocess.run([*command, "--site-dir", str(site)], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    own = [page.relative_to(DOCS) for page in PAGES]
    for page in [*own, *map(Path, repository_pages.PAGES.values())]:
        html = (site / page).with_suffix(".html")
        text = html.read_text(encoding="utf-8")
        assert not re.search(r'<(script|img)[^>]* src="(https?:)?//|<link[^>]* href="(https?:)?//', text), page.name
        pictures = re.findall(r'<img[^>]* src="([^"]+)"', text)
        assert all((html.parent / picture).is_file() for picture in pictures), page.name
    assert (site / "search" / "search_index.js").stat().st_size > 100_000  # what a search reads without a server
