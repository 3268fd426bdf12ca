"""Run the tests of compatibility on one version of MindSpore and of Python, in an environment of its own.

    make compat VERSION=2.7.0 PYTHON=3.10 [QUICK=1]

The environment is .compat/VERSION-PYTHON. A repeat installs nothing. PYTHON may also be the path of an interpreter.
QUICK leaves out the tests that run operator by operator (PYNATIVE_MODE). Any Python 3.10 to 3.12 runs this program.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = runpy.run_path(str(ROOT / "thor" / "runtime" / "supported_versions.py"))
EXAMPLE = "make compat VERSION=2.7.0 PYTHON=3.10"
QUICK = ("-k", "not PYNATIVE")
#: The contract of every optimizer, capture, training, resuming and profiles.
TESTS = (
    "tests/first_order/test_mindspore_versions.py",
    "tests/thor/runtime/test_parameters.py",
    "tests/thor/capture/test_capture.py",
    "tests/thor/test_train_step.py",
    "tests/thor/profile/test_measure.py",
    "tests/thor/profile/test_gather.py",
    "tests/test_earlier_files.py",
    "tests/test_contract.py",
)


class Refused(Exception):
    """What was asked for cannot be done; the message says why, and what can."""


def release_of(version: str) -> Any:
    """The supported version of MindSpore that is named."""
    known = ", ".join(each.version for each in TABLE["RELEASES"])
    if not version:
        raise Refused(f"VERSION is missing: a version of MindSpore, of {known}, as in {EXAMPLE}")
    release = TABLE["release"](version)
    if release is None:
        raise Refused(f"VERSION={version} is not supported: must be one of {known}")
    return release


def interpreter_of(python: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """(path, version as 3.10) of the interpreter that is named by its version or its path."""
    pythons = TABLE["PYTHONS"]
    if not python:
        raise Refused(f"PYTHON is missing: one of {', '.join(pythons)}, or the path of an interpreter, as in {EXAMPLE}")
    if "/" in python:
        found = version_of(python)
        if found not in pythons:
            what = "does not run" if found is None else f"is Python {found}"
            raise Refused(f"PYTHON={python} {what}: must be an interpreter of Python {', '.join(pythons)}")
        return python, found
    if python not in pythons:
        raise Refused(f"PYTHON={python} is not supported: must be one of {', '.join(pythons)}, or a path")
    for path in candidates(python, environment):
        if version_of(path) == python:
            return path, python
    raise Refused(
        f"no Python {python} here: neither python{python} on PATH nor one of pyenv runs. Install it (Debian: "
        f"python{python} and python{python}-venv), or name one: PYTHON=/path/to/python{python}"
    )


def candidates(python: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Where an interpreter of this version may be: on PATH, then pyenv's, the newest first."""
    yield f"python{python}"
    versions = Path(environment.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = versions.glob(f"{python}.*/bin/python")
    yield from map(str, sorted(found, key=lambda path: int(path.parts[-3].split(".")[2]), reverse=True))


def version_of(path: str) -> str | None:
    """The version of an interpreter, as 3.10; None if it does not run."""
    command = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def check_wheel(version: str, release: Any, python: str) -> None:
    """Refuse a Python for which MindSpore has no wheel."""
    if python not in release.pythons:
        have = ", ".join(release.pythons)
        raise Refused(f"MindSpore {version} has no wheel for Python {python}: PYTHON must be one of {have}")


def install(folder: Path, interpreter: str, version: str) -> None:
    """Make the environment, or leave it as it is if it was made from the same requirements.

    For tests on an Ascend it also has the packages that CANN imports.
    """
    of_cann = TABLE["CANN_PACKAGES"].values() if os.environ.get("THOR_TEST_DEVICE") == "Ascend" else ()
    wanted = [f"mindspore=={version}", "pytest>=8", *of_cann, "-e", f"{ROOT}[train]"]
    stamp = folder / ".installed"
    text = f"{wanted} {hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()}\n"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == text:
        return
    print(f"Installing MindSpore {version} and what training needs into {folder.relative_to(ROOT)} (3 GB on disk).")
    if not (folder / "bin" / "python").exists():
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True)
    stamp.write_text(text, encoding="utf-8")


def run_tests(folder: Path, options: list[str], tests: Sequence[str]) -> int:
    """The status of pytest in the environment, whose programs are first on PATH."""
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    return subprocess.run([*command, *options, *tests], cwd=ROOT, env=environment).returncode


def main(arguments: list[str]) -> int:
    """Install, run, and say in one line how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="")
    parser.add_argument("--python", default="")
    parser.add_argument("--quick", action="store_true", help="only the compiled modes")
    parser.add_argument("tests", nargs="*", help="tests to run instead of the list")
    options = parser.parse_args(arguments)
    try:
        release = release_of(options.version)
        interpreter, python = interpreter_of(options.python, os.environ)
        check_wheel(options.version, release, python)
    except Refused as refusal:
        print(f"compat: {refusal}", file=sys.stderr)
        return 2
    folder = ROOT / ".compat" / f"{options.version}-{python}"
    name = f"MindSpore {options.version}, Python {python}"
    try:
        install(folder, interpreter, options.version)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"compat: {name}: could not install: {error}", file=sys.stderr)
        return 1
    begin = time.monotonic()
    status = run_tests(folder, list(QUICK if options.quick else ()), options.tests or TESTS)
    seconds = time.monotonic() - begin
    print(f"compat: {name}: {'all passed' if status == 0 else 'FAILED'} ({seconds:.0f} s)", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
