"""Every program of examples/ runs and learns, and the notebook runs from top to bottom."""

import importlib
import json
import re
import runpy

import pytest

from tests.support.msrun import run_job, starts_processes
from tests.support.paths import ROOT

FOLDER = ROOT / "examples"
JOB = "two_processes"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", JOB))
LINES = 60


def better(before, after):
    return after < 0.7 * before


#: of each example, whether what its main function returns shows that it has learnt
LEARNT = {
    "accumulation_by_hand": lambda found: better(*found),
    "distillation": lambda losses: losses == sorted(losses, reverse=True) and better(losses[0], losses[-1]),
    "gan": lambda found: better(*found),
    "own_cnn": lambda accuracy: accuracy > 0.9,
    "transformer": lambda accuracy: accuracy > 0.9,
    "model_with_callbacks": lambda accuracy: accuracy > 0.85,
    "physics_informed": lambda errors: errors[1] < 0.1 < 0.5 < errors[0],  # THOR's and Adam's
    "several_losses": lambda found: better(*found),
}


def test_every_example_is_known_and_short():
    assert NAMES == sorted(LEARNT)
    lengths = {name: len((FOLDER / f"{name}.py").read_text().splitlines()) for name in (*NAMES, JOB)}
    assert all(length <= LINES for length in lengths.values()), lengths


@pytest.mark.parametrize("name", NAMES)
def test_an_example_learns(name):
    assert LEARNT[name](importlib.import_module(f"examples.{name}").main())


@starts_processes
def test_two_processes_learn_the_same(tmp_path):
    """The losses are of different halves of each batch, the weights the same."""
    run_job(tmp_path, f"examples/{JOB}.py")
    printed = "".join(path.read_text() for path in tmp_path.rglob("worker_*.log"))
    losses = re.findall(r"rank (\d) of 2: loss ([\d.]+) at first, ([\d.]+) in the end", printed)
    assert {rank for rank, *_ in losses} == {"0", "1"}
    assert all(better(float(first), float(last)) for _, first, last in losses)


def test_the_notebook_runs_from_top_to_bottom_and_is_the_quickstart_of_the_docs(tmp_path, monkeypatch):
    cells = json.loads((FOLDER / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    page = (ROOT / "docs" / "getting-started" / "quickstart.md").read_text(encoding="utf-8")
    assert code == [block.rstrip() for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "notebook.py"  # MindSpore reads the source of what it compiles
    program.write_text("\n\n".join(code), encoding="utf-8")
    after = runpy.run_path(str(program), run_name="notebook")
    assert after["accuracy"] > 0.8 and (tmp_path / "optimizer.ckpt").is_file()
