import subprocess
from pathlib import Path

import numpy as np
import pytest

from scripts.data import fashion_mnist, fetch
from tests.support.tiny_runs import write_set
from thor.runtime.errors import UserError


def test_the_real_set_is_complete_and_balanced():
    folder = fashion_mnist.resolve()
    for part, count in (("train", 60_000), ("test", 10_000)):
        images, labels = fashion_mnist.load(folder, part)
        assert images.shape == (count, 28, 28)
        assert np.bincount(labels).tolist() == [count // 10] * 10


def test_option_before_variable_before_cache(tmp_path, monkeypatch):
    option, variable = write_set(tmp_path / "option"), write_set(tmp_path / "variable")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(fashion_mnist.VARIABLE, raising=False)
    cache = write_set(fashion_mnist.cache_folder())
    assert fashion_mnist.resolve() == cache
    monkeypatch.setenv(fashion_mnist.VARIABLE, str(variable))
    assert fashion_mnist.resolve() == variable
    assert fashion_mnist.resolve(option) == option


def test_named_folder_that_lacks_a_file(tmp_path):
    folder = write_set(tmp_path)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"data\.folder\) lacks t10k-labels-idx1-ubyte\.gz"):
        fashion_mnist.resolve(folder)


def test_error_says_the_command_where_nothing_works(tmp_path, monkeypatch):
    _nowhere(tmp_path, monkeypatch)

    def refuse(command, **_):
        raise subprocess.CalledProcessError(100, command, stderr="E: Unable to locate package\n")

    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(fetch.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(fetch.subprocess, "run", refuse)
    monkeypatch.setattr(fetch.urllib.request, "urlopen", unreachable)
    with pytest.raises(UserError) as caught:
        fashion_mnist.resolve()
    message = str(caught.value)
    assert "apt-get update && sudo apt-get install dataset-fashion-mnist" in message
    assert "Unable to locate package" in message and "no route to host" in message


def test_without_root_the_package_is_unpacked_into_the_cache(tmp_path, monkeypatch):
    _nowhere(tmp_path, monkeypatch)
    commands = []

    def pretend(command, cwd=None, **_):
        commands.append(command[:2])
        if command[:2] == ["apt-get", "download"]:
            (Path(cwd) / "dataset.deb").touch()
        if command[0] == "dpkg-deb":
            write_set(Path(command[-1]) / "usr/share/datasets/fashion-mnist")

    monkeypatch.setattr(fashion_mnist, "SYSTEM_FOLDER", Path("/usr/share/datasets/fashion-mnist"))
    monkeypatch.setattr(fashion_mnist, "_missing", lambda folder: [] if (folder / "absent").exists() else ["all"])
    monkeypatch.setattr(fetch.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(fetch.subprocess, "run", pretend)
    assert fashion_mnist.resolve() == fashion_mnist.cache_folder()
    assert commands == [["apt-get", "download"], ["dpkg-deb", "-x"]]
    assert sorted(path.name for path in fashion_mnist.cache_folder().iterdir()) == sorted(fashion_mnist.FILES)


def test_without_root_a_failed_download_is_told_and_not_that_the_lists_are_locked(tmp_path, monkeypatch):
    _nowhere(tmp_path, monkeypatch)

    def failing(command, **_):
        told = {"download": "no route to host", "update": "Unable to lock directory"}[command[1]]
        raise subprocess.CalledProcessError(100, command, stderr=f"E: {told}\n")

    monkeypatch.setattr(fetch.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(fetch.subprocess, "run", failing)
    with pytest.raises(UserError, match="no route to host") as caught:
        fashion_mnist.resolve()
    assert "lock" not in str(caught.value)


def test_download_with_a_wrong_checksum_is_refused(tmp_path, monkeypatch):
    class Response:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def read(self):
            return b"not the file"

    monkeypatch.setattr(fetch.urllib.request, "urlopen", lambda *_, **__: Response())
    with pytest.raises(UserError, match="train-images-idx3-ubyte.gz: the MD5 sum is .* and should be 8d4fb7"):
        fashion_mnist._download()


def _nowhere(tmp_path, monkeypatch):
    """A machine on which no folder has the set."""
    monkeypatch.delenv(fashion_mnist.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fashion_mnist, "SYSTEM_FOLDER", tmp_path / "system")
