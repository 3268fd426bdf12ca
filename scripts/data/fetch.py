"""Finds the files of a data set, or fetches them.

`locate` looks in a folder named by the user, else in the one that an environment variable names, else in the cache and
in the system's folder. If none has the files, it fetches them; if that fails too, the error says which command helps.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import HTTPException
from pathlib import Path

from thor.runtime.errors import UserError

Missing = Callable[[Path], list[str]]

_without_fetching = ContextVar("without_fetching", default=False)


@contextmanager
def without_fetching() -> Iterator[None]:
    """Context in which nothing is fetched: a data set that is not on this machine is an error."""
    token = _without_fetching.set(True)
    try:
        yield
    finally:
        _without_fetching.reset(token)


def locate(
    title: str,
    option: str | Path | None,
    variable: str,
    folders: Sequence[Path],
    missing: Missing,
    ways: Sequence[Callable[[], Path]],
    advice: str,
    size: str = "",
) -> Path:
    """Return the folder that holds a data set; fetch the set if no folder has it.

    Args:
        title: Name of the set in messages.
        option: Folder named by the user; it must have all files.
        variable: Environment variable that may name a folder, which must then have all files.
        folders: Other folders to look in, in order.
        missing: Returns the names of the files that a folder lacks.
        ways: Functions that fetch the set and return its folder, in the order to try.
        advice: What the user can do if all this fails.
        size: Size of the download, for the message.
    """
    for source, named in (("the option data.folder", option), (variable, os.environ.get(variable))):
        if named:
            return complete(Path(named).expanduser(), source, missing)
    for candidate in folders:
        if not missing(candidate):
            return candidate
    if not ways or _without_fetching.get():
        raise UserError(f"{title} is not on this machine.\n{advice}")
    print(f"Fetching {title} ({size}, once) ...", file=sys.stderr)
    reasons = []
    for way in ways:
        try:
            return way()
        except (OSError, HTTPException, subprocess.SubprocessError, UserError) as error:
            reasons.append(f"{way.__name__.strip('_').replace('_', ' ')}: {_reason(error)}")
    raise UserError(f"{title} is not on this machine and could not be fetched.\n  " + "\n  ".join(reasons + [advice]))


def lacks(names: Sequence[str]) -> Missing:
    """A function that returns those of these files that a folder lacks."""

    def missing(folder: Path) -> list[str]:
        return [name for name in names if not (folder / name).is_file()]

    return missing


def complete(folder: Path, source: str, missing: Missing) -> Path:
    """Return the folder if it has all files; otherwise raise an error that names the missing ones and `source`."""
    lacking = missing(folder)
    if lacking:
        raise UserError(f"{folder} ({source}) lacks {', '.join(lacking)}")
    return folder


def cache_folder(name: str) -> Path:
    """The folder in the user's cache for the fetched files of a data set."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mindspore-thor" / name


def install_package(package: str) -> None:
    """Install a Debian package, as root."""
    _require_apt()
    if os.geteuid() != 0:
        raise UserError("not root")
    _apt("install", "--yes", "--no-install-recommends", package)


@contextmanager
def unpacked_package(package: str) -> Iterator[Path]:
    """Context that downloads a Debian package, and unpacks it below a temporary folder, which it yields; needs no root.

    The yielded folder takes the place of `/` in the package's paths.
    """
    _require_apt()
    with tempfile.TemporaryDirectory() as temporary:
        _apt("download", package, folder=temporary)
        archive = next(Path(temporary).glob("*.deb"))
        _run(["dpkg-deb", "-x", str(archive), temporary])
        yield Path(temporary)


def download(url: str, md5: str) -> bytes:
    """Return the content of a URL, after comparing it with its published MD5 sum."""
    with urllib.request.urlopen(url, timeout=30) as response:
        content: bytes = response.read()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise UserError(f"{url.rsplit('/', 1)[-1]}: the MD5 sum is {found}, and should be {md5}")
    return content


def keep(folder: Path, names: Sequence[str], cache: Path) -> Path:
    """Copy files into the cache, and return the cache. A file gets its final name only once it is complete."""
    cache.mkdir(parents=True, exist_ok=True)
    for name in names:
        partial = cache / f"{name}.{os.getpid()}.partial"  # one per process, since all ranks of a job may fetch
        try:
            shutil.copyfile(folder / name, partial)
            os.replace(partial, cache / name)
        finally:
            partial.unlink(missing_ok=True)
    return cache


def _reason(error: Exception) -> str:
    """The message of a failure, in one line."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or "").strip().splitlines()
        return lines[-1] if lines else f"{error.cmd[0]} ended with status {error.returncode}"
    return str(error) or type(error).__name__


def _require_apt() -> None:
    """Raise an error if there is no apt-get."""
    if shutil.which("apt-get") is None:
        raise UserError("apt-get is not on this machine")


def _apt(*arguments: str, folder: str | None = None) -> None:
    """Run apt-get; if it fails, run it once more after `apt-get update`, which only root may do."""
    try:
        _run(["apt-get", *arguments], folder)
    except subprocess.CalledProcessError:
        if os.geteuid() != 0:
            raise
        _run(["apt-get", "update"])
        _run(["apt-get", *arguments], folder)


def _run(command: list[str], folder: str | None = None) -> None:
    """Run a command without output and without questions."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=300)
