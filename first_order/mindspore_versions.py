"""What versions of MindSpore name or do differently, in one form; no other module of the project asks for a version.

The module stands in the lowest package, so that all packages can use it. :mod:`thor.runtime.supported_versions` lists
the versions.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

__all__ = ["compiler"]


def first_module(*names: str) -> ModuleType:
    """The first of these modules that is there."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ImportError(f"none of the modules {', '.join(names)} is there: this version of MindSpore is not supported")


#: The module that compiles graphs and runs them; before MindSpore 2.9 it stood in ``common``.
compiler: Any = first_module("mindspore.graph.api", "mindspore.common.api")
