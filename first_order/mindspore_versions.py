"""What versions of MindSpore name or do differently, in one form; no other module of the project asks for a version.

The module stands in the lowest package, so that all packages can use it. :mod:`thor.runtime.supported_versions` lists
the versions.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ops

__all__ = ["address", "compiler", "ignores_assign"]


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

#: True where Assign leaves a view of another Tensor as it is and says nothing: MindSpore 2.7. Later versions refuse.
_ASSIGN_MAY_BE_IGNORED = ms.__version__.startswith("2.7.")

#: True where a value may lie on the host alone, and asking for its address prints an error line: MindSpore 2.7.0.
_ADDRESS_MAY_BE_MISSING = ms.__version__ == "2.7.0"


def address(parameter: Parameter) -> int:
    """Where a Parameter's value lies; 0 where it lies on the host alone."""
    if _ADDRESS_MAY_BE_MISSING and _is_on_host_alone(parameter):
        return 0
    return int(parameter.data_ptr())


def _is_on_host_alone(parameter: Parameter) -> bool:
    """What MindSpore 2.7.0 tells of a value's storage without printing anything, by the message of an error."""
    try:
        parameter.untyped_storage()
    except RuntimeError as error:
        return "has no device" in str(error)
    return False


def ignores_assign(parameter: Parameter) -> bool:
    """True if MindSpore does not write into this Parameter, and says nothing of it; its value stays as it is."""
    if not _ASSIGN_MAY_BE_IGNORED:
        return False
    before = parameter.value() + 0
    numbers = before.astype(ms.float32).asnumpy()
    ops.assign(parameter, ops.ones_like(before))
    now = parameter.value().astype(ms.float32).asnumpy()
    ops.assign(parameter, before)
    return bool((numbers != 1).any()) and np.array_equal(now, numbers, equal_nan=True)
