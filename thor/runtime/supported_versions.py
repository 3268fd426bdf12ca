"""The versions of MindSpore that this package runs on, and what goes with each: Python, and on Ascend CANN and driver.

``thor doctor``, ``make compat`` and the tests of pyproject.toml and docs/reference/versions.md all read this
table. The module imports nothing but the standard library, so that a program can read it where MindSpore is not
installed. What versions of MindSpore do differently is told in :mod:`first_order.mindspore_versions`.

Where the columns come from:

- ``pythons``: the wheels for Linux on PyPI.
- ``cann_accepted``: the versions of CANN that MindSpore itself accepts without a warning, from
  ``mindspore/run_check/_check_version.py`` in the wheel (``AscendEnvChecker``). Some are numbers of
  CANN's compiler, as ``$ASCEND_HOME_PATH/compiler/version.info`` states them, which MindSpore reads.
- ``cann_of_operators``: the version of CANN that the wheel's own Ascend operators were compiled with, from
  ``mindspore/lib/plugin/ascend/custom_ascendc_910b/version.info`` in the wheel.
- ``cann`` and ``driver``: the pair of CANN and of driver and firmware that MindSpore Transformers, MindSpore's own
  suite, names for this version of MindSpore, at https://www.mindspore.cn/mindformers/docs/en/r1.9.0/installation.html
  (for 2.7.0 to 2.9.0). None: no page that names them was found.
- ``CANN_PACKAGES``: the list of CANN's installation guide, at
  https://www.hiascend.com/document/detail/en/CANNCommunityEdition/910/softwareinst/instg/instg_0045.html.
"""

from __future__ import annotations

from typing import NamedTuple


class Release(NamedTuple):
    """A version of MindSpore and what goes with it."""

    version: str
    pythons: tuple[str, ...]
    cann_accepted: tuple[str, ...]
    cann_of_operators: str
    cann: str | None
    driver: str | None


PYTHONS = ("3.10", "3.11", "3.12")
RELEASES = (
    Release("2.7.0", ("3.10", "3.11"), ("7.7", "7.8", "8.2"), "8.2", "8.2.RC1", "25.2.0"),
    Release("2.7.1", ("3.10", "3.11"), ("7.8", "8.2", "8.3"), "8.3", "8.3.RC1", "25.3.RC1"),
    Release("2.7.2", PYTHONS, ("8.5",), "8.5", "8.5.0", "25.5.0"),
    Release("2.8.0", PYTHONS, ("8.2", "8.3", "8.5"), "8.5", None, None),
    Release("2.9.0", PYTHONS, ("8.2", "8.3", "8.5", "9.0"), "9.0.0", "9.0.0", "26.0.RC1"),
    Release("2.10.0", PYTHONS, ("8.2", "8.3", "8.5", "9.0", "9.1"), "9.1.0", None, None),
)
#: What CANN's Python code imports: module, and the package that pip installs.
CANN_PACKAGES = {
    "absl": "absl-py",
    "attr": "attrs",
    "cffi": "cffi",
    "Cython": "cython",
    "decorator": "decorator",
    "pathlib2": "pathlib2",
    "requests": "requests",
    "sympy": "sympy",
}


def release(version: str) -> Release | None:
    """The entry of a version of MindSpore, of its post-releases too; None for a version that is not supported."""
    plain = version.split(".post")[0]
    return next((each for each in RELEASES if each.version == plain), None)
