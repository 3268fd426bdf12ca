"""docs/dev/architecture.md: the files and functions it names exist, its wings are those of the import contracts, and a
curvature step passes the functions of its list, in that order, each on the host or compiled as the list says.
"""

import ast
import re
import sys
import tomllib

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import thor
from tests.support.paths import ROOT
from thor.runtime import device

PAGE = (ROOT / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8")
#: (H or C, file, function) of each line of the list
LISTED = re.findall(r"^\d+\. \*\*([HC])\*\* `([\w/]+\.py): ([\w.]+)`", PAGE, flags=re.MULTILINE)


def named():
    """(file, name) of all that the page names in a file: `file: name`, and further names after commas."""
    for file, first, others in re.findall(r"`([\w/]+\.py): ([\w.]+)`((?:, `[\w.]+`)*)", PAGE):
        yield from ((file, name) for name in [first, *re.findall(r"[\w.]+", others)])


def names_in(file):
    """Functions, classes, members of classes and assigned names of a module, without nested functions."""
    found = set()

    def visit(body, prefix):
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    visit(ast.parse((ROOT / file).read_text(encoding="utf-8")).body, "")
    return found


def test_every_function_that_is_named_exists():
    assert len(set(named())) > len(LISTED) > 50
    assert [f"{file}: {name}" for file, name in named() if name not in names_in(file)] == []


def test_every_path_that_is_named_exists():
    paths = re.findall(r"`((?:thor|first_order|models|scripts|tests)/[\w/.]*)", PAGE)
    assert len(paths) > 80
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_two_numbers_are_those_of_the_list():
    functions, files = len({entry[1:] for entry in LISTED}), len({file for _, file, _ in LISTED})
    assert len(LISTED) == functions
    assert f"That is {functions} functions in {files} files." in PAGE


def test_the_wings_are_those_of_the_import_contracts():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contracts = [each for each in tools["importlinter"]["contracts"] if each["type"] == "layers"]
    layers = {each["containers"][0]: each["layers"] for each in contracts}
    table = PAGE.split("| `thor/`, top to bottom |")[1].split("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines()[2:]]
    assert rows == [layer.split(" | ") for layer in layers["thor"]]
    sentence = PAGE.split("from top to bottom: ")[1].split(".\n")[0]
    of_scripts = [re.findall(r"`(\w+)`", part) for part in sentence.split(";")]
    assert of_scripts == [layer.split(" | ") for layer in layers["scripts"]]


# -- the list ----------------------------------------------------------------------------------------------------------


def passed_in_a_refresh(jit):
    """(file, function) of the project, in the order of first calls, in a candidate refresh after a first one."""
    ms.set_seed(0)
    net = nn.SequentialCell(nn.Dense(6, 40, activation="relu"), nn.Dense(40, 3))
    optimizer = thor.THOR(net, 0.01, 0.03, block_size=32, interval=1, refresh=thor.TraceRule.thor_nt())
    step = thor.TrainStep(net, nn.CrossEntropyLoss(), optimizer, jit=jit)
    rng = np.random.default_rng(0)
    x, y = Tensor(rng.normal(size=(8, 6)).astype(np.float32)), Tensor(rng.integers(0, 3, 8).astype(np.int32))
    step(x, y)
    assert optimizer.phase == "refresh"
    passed = {}

    def watch(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{ROOT}/"):
            file = code.co_filename[len(f"{ROOT}/") :]
            passed.setdefault((file, code.co_qualname.split(".<locals>")[0]))  # what a function builds counts as it

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        step(x, y)
    finally:
        sys.setprofile(before)
    return list(passed)


@pytest.fixture
def mode(request):
    """MindSpore's mode for one test."""
    before = ms.get_context("mode")
    ms.set_context(mode=getattr(ms, request.param))
    yield
    ms.set_context(mode=before)


on_a_cpu = pytest.mark.skipif(device.current() != "CPU", reason="the list is a CPU's: LAPACK inverts on the host")


@on_a_cpu
@pytest.mark.parametrize("mode", ["PYNATIVE_MODE"], indirect=True)
def test_a_step_that_is_not_compiled_passes_all_of_the_list_in_its_order(mode):
    listed = [entry[1:] for entry in LISTED]
    assert [each for each in passed_in_a_refresh(jit=False) if each in listed] == listed


@on_a_cpu
@pytest.mark.parametrize("mode", ["GRAPH_MODE"], indirect=True)
def test_a_compiled_step_passes_what_runs_on_the_host(mode):
    listed = [entry[1:] for entry in LISTED]
    on_the_host = [entry[1:] for entry in LISTED if entry[0] == "H"]
    assert [each for each in passed_in_a_refresh(jit=True) if each in listed] == on_the_host
