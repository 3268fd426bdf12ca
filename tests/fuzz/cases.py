"""Runs one damaged file through a target: it is read or refused with an error meant for users, or it is a failure."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

from tests.fuzz.targets import Target

READ, REFUSED = "read", "refused"
LIMIT = 30.0  # seconds; a reader that is given a small file and takes longer hangs


class Failure(AssertionError):
    """A case that was neither read rightly nor refused clearly; its seed makes it again."""


class Bench:
    """A good folder, in which one file is damaged for each case."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.folder = folder
        target.make(folder)
        self._good = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def run(self, seed: int) -> str:
        """What became of a case."""
        target, path = self.target, self.folder / self.target.file
        self._restore()
        path.unlink()  # another name may lead to the same file
        path.write_bytes(target.damage(Random(f"{target.name}/{seed}"), self._good[path]))
        begin = perf_counter()
        try:
            with warnings.catch_warnings(action="ignore"):
                outcome = self._outcome(path)
        except Exception as error:
            raise Failure(f"{target.name}, seed {seed}: {type(error).__name__}: {error}") from error
        if perf_counter() - begin > LIMIT:
            raise Failure(f"{target.name}, seed {seed}: took {perf_counter() - begin:.0f} s")
        return outcome

    def _outcome(self, path: Path) -> str:
        try:
            found = self.target.read(self.folder)
        except self.target.refusals as error:
            assert str(error).strip(), "a refusal says nothing"
            name = str(path.with_suffix(""))  # of a checkpoint's two files it may be either
            assert not self.target.named or name in str(error), f"does not name the file: {error}"
            self.target.recover(self.folder)
            return REFUSED
        self.target.check(self.folder, found)
        return READ

    def _restore(self) -> None:
        """Bring back what the case before has changed."""
        for path, data in self._good.items():
            if not path.is_file() or path.read_bytes() != data:
                path.unlink(missing_ok=True)
                path.write_bytes(data)


@contextmanager
def bench(target: Target) -> Iterator[Bench]:
    """A bench in a folder of its own, which is also the working directory: damaged paths lead nowhere else."""
    before = Path.cwd()
    with TemporaryDirectory(prefix="fuzz-") as folder:
        os.chdir(folder)
        try:
            yield Bench(target, Path(folder))
        finally:
            os.chdir(before)


def cases_of(target: Target, cases: int) -> int:
    """How many of a number of cases a target runs."""
    return max(1, round(cases * target.share))
