"""The documentation: every Python block runs, links lead somewhere, the site builds.

A page's blocks are one program. It is written to a file, because functions that MindSpore compiles must have a source
to be read again, and stands at the lines it has on the page, so that a traceback names the page's line.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import yaml
from mindspore import Tensor, nn

from scripts.docs import readme_hook
from tests.support.markdown import take_apart
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"


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


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Pages write checkpoints into the working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_in_order(page, tmp_path):
    run(merged(blocks(page)), tmp_path / f"page_{page.stem}.py")


def batch(shape, classes=10):
    """(x, y) of eight examples."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, *shape)).astype(np.float32)
    return Tensor(x), Tensor(rng.integers(0, classes, 8).astype(np.int32))


def test_the_first_example_of_the_readme(tmp_path, monkeypatch):
    """It trains on ``batches`` and a ``dataset`` of one's own; here also with a smaller network than LeNet."""
    monkeypatch.setattr("models.lenet.lenet5", lambda: nn.SequentialCell(nn.Flatten(), nn.Dense(9, 10)))
    x, y = batch((1, 3, 3))
    data = ms.dataset.NumpySlicesDataset({"x": x.asnumpy(), "y": y.asnumpy()}, shuffle=False).batch(8)
    after = run(blocks(README)[0], tmp_path / "readme_thor.py", {"batches": [(x, y)] * 2, "dataset": data})
    assert after["optimizer"].step == 7  # two, and five epochs of one


def test_the_first_order_example_of_the_readme(tmp_path):
    """It optimizes a ``net`` by ``loss_of``, and hands its state to PyTorch."""
    import torch

    net, loss_fn = nn.Dense(5, 3), nn.CrossEntropyLoss()

    def loss_of(x, y):
        return loss_fn(net(x), y)

    names = {"net": net, "loss_of": loss_of, "batches": [batch((5,), 3)] * 2, "torch": torch}
    after = run(blocks(README)[1], tmp_path / "readme_first_order.py", names)
    assert after["state"]["state"][0]["step"] == 2
    assert len(blocks(README)) == 2


# -- the site ----------------------------------------------------------------------------------------------------------


def pages_of(nav) -> list[str]:
    """File names in the navigation, depth first."""
    if isinstance(nav, str):
        return [nav]
    return [name for item in (nav.values() if isinstance(nav, dict) else nav) for name in pages_of(item)]


def test_the_navigation_names_exactly_the_pages_there_are():
    named = pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert sorted(named) == sorted([str(page.relative_to(DOCS)) for page in PAGES] + list(readme_hook.PAGES.values()))
    assert named[0] == "index.md"


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return "\n".join(take_apart(page)[1])


def anchors(page: Path) -> set[str]:
    """What headings can be linked to, in plain words: lower case, hyphens for spaces."""
    heads = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.stem)
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
    result = subprocess.run([*command, "--site-dir", str(site)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    for page in [*(page.relative_to(DOCS) for page in PAGES), *map(Path, readme_hook.PAGES.values())]:
        html = (site / page).with_suffix(".html")
        text = html.read_text(encoding="utf-8")
        assert not re.search(r'<(script|img)[^>]* src="(https?:)?//|<link[^>]* href="(https?:)?//', text), page.name
        pictures = re.findall(r'<img[^>]* src="([^"]+)"', text)
        assert all((html.parent / picture).is_file() for picture in pictures), page.name
