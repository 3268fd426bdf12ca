"""The project as a package: its version, licence, lock files, and what a wheel of it holds."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import thor
from tests.support.paths import ROOT
from thor.runtime import supported_versions

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("thor", "first_order")
TRAIN, DEV = "requirements-train.lock", "requirements-dev.lock"


def normalised(name):
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name):
    """Version by package of a lock file; every line but comments is a pin."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    found = {normalised(package): version for package, version in pairs}
    assert len(found) == len(pairs) > 0
    return found


def required(*extras):
    """Packages that pyproject.toml names: the dependencies and those of some extras."""
    project = PYPROJECT["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return {normalised(re.match(r"[\w.-]+", line)[0]) for line in lines}


# -- version -----------------------------------------------------------------------------------------------------------


def test_the_version_has_one_source():
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "thor.__version__"}


def test_citation_and_changelog_name_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == thor.__version__
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [heading for heading in headings if heading != "Unreleased"][0] == thor.__version__


def test_the_versions_are_those_of_the_table():
    project = PYPROJECT["project"]
    pythons = [line.removeprefix("Programming Language :: Python :: ") for line in project["classifiers"]]
    assert tuple(python for python in pythons if re.fullmatch(r"3\.\d+", python)) == supported_versions.PYTHONS
    allowed = SpecifierSet(project["requires-python"])
    assert [f"3.{minor}" for minor in range(8, 15) if f"3.{minor}" in allowed] == list(supported_versions.PYTHONS)
    mindspore = next(Requirement(line) for line in project["dependencies"] if line.startswith("mindspore"))
    releases = [each.version for each in supported_versions.RELEASES]
    assert all(version in mindspore.specifier for version in releases)
    assert not any(version in mindspore.specifier for version in ("2.6.0", "2.11.0", "3.0.0"))
    assert pins(TRAIN)["mindspore"] == releases[-1]
    assert PYPROJECT["tool"]["mypy"]["python_version"] == supported_versions.PYTHONS[0]
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{supported_versions.PYTHONS[0].replace('.', '')}"


# -- licence -----------------------------------------------------------------------------------------------------------


def test_the_licence_is_apache_2_wherever_it_is_named():
    text = " ".join((ROOT / "LICENSE").read_text(encoding="utf-8").split())
    assert text.startswith("Apache License Version 2.0, January 2004")
    assert "END OF TERMS AND CONDITIONS" in text
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["license"] == "Apache-2.0"


# -- wheel -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Names of the files in a wheel, built from a copy so that nothing is left in the checkout."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "models", "scripts"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    result = subprocess.run([*command, "--wheel-dir", str(out), str(copy)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = out.glob("*.whl")
    assert path.name.startswith(f"mindspore_thor-{thor.__version__}-")
    return zipfile.ZipFile(path).namelist()


def test_a_wheel_holds_both_packages_whole_and_nothing_else(wheel):
    modules = {str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    ours = modules | {f"{name}/py.typed" for name in PACKAGES}
    assert {name for name in wheel if ".dist-info/" not in name} == ours


def test_a_wheel_holds_the_licence(wheel):
    assert [name for name in wheel if name.endswith(".dist-info/licenses/LICENSE")]


# -- lock files --------------------------------------------------------------------------------------------------------


def test_training_needs_nothing_that_only_tests_and_checks_need():
    unwanted = required("dev") - required("train")
    assert {"tensorflow-cpu", "torch", "onnx", "mypy", "pytest"} <= unwanted
    assert unwanted & set(pins(TRAIN)) == set()


def test_no_package_is_in_both_lock_files():
    assert set(pins(TRAIN)) & set(pins(DEV)) == set()


def test_the_lock_files_have_all_that_is_required():
    assert required("train") - set(pins(TRAIN)) == set()
    assert required("train", "dev") - set(pins(TRAIN)) - set(pins(DEV)) == set()
    builders = {normalised(re.match(r"[\w.-]+", line)[0]) for line in PYPROJECT["build-system"]["requires"]}
    assert (
        builders - set(pins(TRAIN)) == set()
    )  # the package is installed without an environment of its own to build in
