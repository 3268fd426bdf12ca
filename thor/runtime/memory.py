"""Memory available to this process: free memory of the system, within the limits of its container or batch job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

UNKNOWN = 8 * 2**30  # bytes assumed where the system does not say


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory available, read from the files below ``root``; 8 GiB free if the system does not say."""
    free = UNKNOWN
    with suppress(OSError, IndexError, ValueError):
        text = (root / "proc/meminfo").read_text(encoding="ascii")
        free = int(text.split("MemAvailable:")[1].split()[0]) * 1024
    return max(0, min([free, *_cgroup_headroom(root)]))


def _cgroup_headroom(root: Path) -> Iterator[int]:
    """Bytes left below the memory limit of each control group of this process, and of each group's ancestors.

    Docker, Kubernetes and Slurm set such limits and kill a process that exceeds them; /proc/meminfo ignores them.
    """
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                base = root / "sys/fs/cgroup/memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            inside = base / path.lstrip("/")  # in a container, the path may be the host's and not exist here
            for folder in (inside, *inside.parents):
                yield from _headroom(folder, *names)
                if folder == base:
                    break


def _headroom(folder: Path, limit: str, usage: str, cached: str) -> Iterator[int]:
    """The limit of one group minus its usage, if it has a limit; cached files that can be dropped are not usage."""
    with suppress(OSError, ValueError):  # "max" stands for no limit
        most = int((folder / limit).read_text(encoding="ascii"))
        used = int((folder / usage).read_text(encoding="ascii"))
        for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            used -= int(value) if name == cached else 0
        yield most - used
