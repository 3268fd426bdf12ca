"""What a run on an Ascend needs beside MindSpore: CANN and the driver, compared with those that go with this MindSpore.

Pure functions from the texts of files to findings. :mod:`thor.runtime.supported_versions` has the versions that go
together and tells where each was read. Where it has none, the finding says so.

The files are those that MindSpore and CANN's installation guide read versions from
(https://www.hiascend.com/document/detail/en/canncommercial/850/softwareinst/instg/instg_0064.html).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from thor.cli.finding import Finding, Level
from thor.runtime import supported_versions

INSTALL_PAGE = "https://www.mindspore.cn/install"
DRIVER_FILE = "/usr/local/Ascend/driver/version.info"
HOMES = ("/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest")
COMPILER = "te"  # CANN's compiler of operators; its set_env.sh puts the module on PYTHONPATH


def cann_files(environment: Mapping[str, str], architecture: str) -> list[str]:
    """The files that can tell CANN's version, the best first.

    Args:
        environment: Where ASCEND_HOME_PATH is looked for; without it the folders of a usual installation are taken.
        architecture: The machine's, as ``platform.machine()`` gives it.
    """
    homes = [environment["ASCEND_HOME_PATH"]] if environment.get("ASCEND_HOME_PATH") else HOMES
    names = ("compiler/version.info", f"{architecture}-linux/ascend_toolkit_install.info")
    return [f"{home}/{name}" for home in homes for name in names]


def version_in(text: str) -> str | None:
    """The version that a version file states, in a line such as ``Version=8.5.0``; None where there is none."""
    found = re.search(r"^\s*version\s*=\s*(\S+)", text, flags=re.IGNORECASE | re.MULTILINE)
    return found.group(1) if found else None


def cann(mindspore: str, found: str | None, files: Sequence[str], level: Level) -> Finding:
    """CANN, against the versions that this MindSpore accepts.

    Args:
        mindspore: Version of MindSpore.
        found: CANN's version; None where no file states it.
        files: The files that were looked for.
        level: What a missing CANN is: ``fail`` where a run on Ascend is wanted, else ``warn``.
    """
    release = supported_versions.release(mindspore)
    wanted = f"CANN {release.cann or release.cann_of_operators}" if release else f"the CANN of {INSTALL_PAGE}"
    if found is None:
        cure = f"install {wanted} and source its set_env.sh, which sets ASCEND_HOME_PATH"
        return Finding("cann", level, f"no version found in {', '.join(files)}", cure)
    if release is None:
        text = f"{found}; the versions that MindSpore {mindspore} accepts are unknown here"
        return Finding("cann", "warn", text, f"compare with {INSTALL_PAGE}")
    text = f"{found}; MindSpore {mindspore} accepts {', '.join(release.cann_accepted)}"
    if series(found) in release.cann_accepted:
        return Finding("cann", "ok", text)
    return Finding("cann", "warn", text, f"install {wanted}, or a MindSpore that accepts {series(found)}")


def driver(mindspore: str, found: str | None, level: Level) -> Finding:
    """The driver, against the one that is named with this MindSpore; the arguments are those of :func:`cann`."""
    release = supported_versions.release(mindspore)
    named = release.driver if release else None
    if found is None:
        cure = f"install driver and firmware {named or 'that the release notes of your CANN name'}"
        return Finding("driver", level, f"no version found in {DRIVER_FILE}", cure)
    if named is None:
        text = f"{found}; the one that goes with MindSpore {mindspore} is unknown here"
        return Finding("driver", "warn", text, "see whether the release notes of the installed CANN list it")
    text = f"{found}; {named} is named with MindSpore {mindspore}"
    if series(found) == series(named):
        return Finding("driver", "ok", text)
    return Finding("driver", "warn", text, f"install {named}, or ask your CANN's release notes for {found}")


def packages(missing: Sequence[str], level: Level) -> Finding:
    """The Python packages that CANN needs beside its own.

    Args:
        missing: Those of :data:`COMPILER` and the modules of ``CANN_PACKAGES`` that Python does not find.
        level: What a missing one is, as for :func:`cann`.
    """
    if not missing:
        return Finding("cann's python", "ok", f"{COMPILER} and what it imports are there")
    cures = [f"source CANN's set_env.sh, which brings {COMPILER}"] if COMPILER in missing else []
    installable = [package for module, package in supported_versions.CANN_PACKAGES.items() if module in missing]
    cures += [f"pip install {' '.join(installable)}"] if installable else []
    return Finding("cann's python", level, f"missing: {', '.join(missing)}", "; ".join(cures))


def series(version: str) -> str:
    """The first two numbers of a version: ``8.2`` of ``8.2.RC1``."""
    return ".".join(version.split(".")[:2])
