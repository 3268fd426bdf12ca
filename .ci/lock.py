"""Renew requirements-train.lock and requirements-dev.lock with the newest versions that pyproject.toml allows.

    make lock

Both files come from one resolution, of the extras ``train`` and ``dev`` together, so that their versions agree. The
packages that training needs are pinned in the first file, all others in the second. Nothing is installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN, DEV = ROOT / "requirements-train.lock", ROOT / "requirements-dev.lock"


def main() -> int:
    """Resolve, split and write."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as folder:
        everything = resolve(Path(folder), ".[train,dev]", *build)
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(everything.values()) + "\n", encoding="utf-8")
        train = resolve(Path(folder), ".[train]", *build, "--constraint", str(constraints))
    write(TRAIN, train)
    write(DEV, {name: pin for name, pin in everything.items() if name not in train})
    return 0


def resolve(folder: Path, *requirements: str) -> dict[str, str]:
    """Pins of everything that pip would install into an empty environment, by normalised name; not of this project."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--dry-run"]
    subprocess.run([*command, "--ignore-installed", "--report", str(report), *requirements], cwd=ROOT, check=True)
    pins = {}
    for package in json.loads(report.read_text(encoding="utf-8"))["install"]:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        if "dir_info" not in package["download_info"]:
            pins[normalised(name)] = f"{name}=={version.partition('+')[0]}"  # torch's build for CPUs is 2.13.0+cpu
    return pins


def normalised(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write(path: Path, pins: dict[str, str]) -> None:
    """Pins in the order of names, below the comments that the file begins with."""
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    path.write_text("\n".join([*head, *(pins[name] for name in sorted(pins))]) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(pins)} packages")


if __name__ == "__main__":
    sys.exit(main())
