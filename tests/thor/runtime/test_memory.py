"""Memory that is free: the system's, and what control groups leave of it."""

import pytest

from thor.runtime.memory import UNKNOWN, available_memory

GIB = 2**30


def machine(root, free=16 * GIB, groups="", files=None):
    """A system's files: so many bytes free, these control groups."""
    written = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {free // 1024} kB\n", "proc/self/cgroup": groups}
    for name, text in (written | (files or {})).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


def group(folder, limit, used, cached=0, *, first=False):
    """The three files of a group, of the first version of control groups or of the second."""
    names = ("limit_in_bytes", "usage_in_bytes", "total_") if first else ("max", "current", "")
    return {
        f"{folder}/memory.{names[0]}": f"{limit}\n",
        f"{folder}/memory.{names[1]}": f"{used}\n",
        f"{folder}/memory.stat": f"anon 5\n{names[2]}inactive_file {cached}\nunevictable 0\n",
    }


def test_of_this_machine_there_is_some():
    assert 2**26 < available_memory() < 2**50


def test_without_limits_it_is_what_the_system_has_free(tmp_path):
    assert available_memory(machine(tmp_path, 3 * GIB, "0::/\n")) == 3 * GIB


def test_a_system_that_does_not_say_has_eight_gib(tmp_path):
    assert available_memory(tmp_path) == UNKNOWN == 8 * GIB


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("path", ["/", "/job/step", "/a/path/of/the/host"])
def test_a_groups_limit_counts_less_what_it_uses_and_cannot_drop(path, first, tmp_path):
    base = "sys/fs/cgroup/memory" if first else "sys/fs/cgroup"
    folder = f"{base}{path}" if path == "/job/step" else base  # the host's path is not there: the group is the root
    line = f"4:cpu,memory:{path}\n" if first else f"0::{path}\n"
    files = group(folder, 4 * GIB, 3 * GIB, GIB, first=first)
    assert available_memory(machine(tmp_path, groups=f"9:name=systemd:/\n{line}", files=files)) == 2 * GIB


def test_the_tightest_of_the_groups_around_one_counts(tmp_path):
    files = group("sys/fs/cgroup", "max", 0) | group("sys/fs/cgroup/job", 2 * GIB, GIB)
    files |= group("sys/fs/cgroup/job/step", 8 * GIB, GIB)
    assert available_memory(machine(tmp_path, groups="0::/job/step\n", files=files)) == GIB


def test_a_group_that_is_full_leaves_nothing(tmp_path):
    files = group("sys/fs/cgroup", GIB, 2 * GIB)
    assert available_memory(machine(tmp_path, groups="0::/\n", files=files)) == 0


@pytest.mark.parametrize("text", ["max", "", "many"])
def test_a_group_without_a_limit_changes_nothing(text, tmp_path):
    files = group("sys/fs/cgroup", text, 0)
    assert available_memory(machine(tmp_path, 5 * GIB, "0::/\nnonsense\n", files)) == 5 * GIB
