"""One process at a time trains in a folder."""

import subprocess
import sys

import pytest

from scripts.run_folder.folder_lock import LOCK, folder_lock
from tests.support.paths import ROOT
from thor.runtime.errors import UserError

HOLD = "import sys; from pathlib import Path; from scripts.run_folder.folder_lock import folder_lock\n" \
       "with folder_lock(Path(sys.argv[1]), True): print('held', flush=True); sys.stdin.read()"  # fmt: skip


def test_a_second_process_is_refused_until_the_first_has_died(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    with (
        pytest.raises(UserError, match="another process is training in this folder.* --out"),
        folder_lock(tmp_path, True),
    ):
        pass
    with folder_lock(tmp_path, False):  # a rank that writes nothing
        pass
    first.kill()
    first.communicate()
    with folder_lock(tmp_path, True):
        assert (tmp_path / LOCK).is_file()
    with folder_lock(tmp_path, True):  # again, in one process
        pass


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/run: cannot be written"), folder_lock(tmp_path / "file" / "run", True):
        pass
