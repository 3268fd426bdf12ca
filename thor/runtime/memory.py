"""How much memory there is to use: what the system has free, and no more than a container or a batch job may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

UNKNOWN = 8 * 2**30  # bytes, where the system does not say


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that are free for use, below ``root``'s limits; 8 GiB where the system does not say."""
    free = UNKNOWN
    with suppress(OSError, IndexError, ValueError):
        text = (root / "proc/meminfo").read_text(encoding="ascii")
        free = int(text.split("MemAvailable:")[1].split()[0]) * 1024
    return max(0, min([free, *_left_by_groups(root)]))


def _left_by_groups(root: Path) -> Iterator[int]:
    """What each of this process's control groups, and each group around those, still has of its limit.

    Docker, Kubernetes and Slurm limit memory so, and end what takes more; /proc/meminfo knows nothing of it.
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
            inside = base / path.lstrip("/")  # in a container that path may be the host's, and not be there
            for folder in (inside, *inside.parents):
                yield from _left(folder, *names)
                if folder == base:
                    break


def _left(folder: Path, limit: str, usage: str, cached: str) -> Iterator[int]:
    """The limit less what is used; files that were read and can be dropped do not count."""
    with suppress(OSError, ValueError):  # "max": there is none
        most = int((folder / limit).read_text(encoding="ascii"))
        used = int((folder / usage).read_text(encoding="ascii"))
        for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            used -= int(value) if name == cached else 0
        yield most - used
