"""New values for Parameters reach compiled graphs in the storage that the graphs know.

``load_param_into_net`` and ``set_data`` give a Parameter new storage. A graph that was compiled before may go on
writing to the old one. So the new value is copied into the old storage, which the Parameter then has again, and nothing
is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from mindspore import Parameter, Tensor, ops

from first_order.mindspore_versions import address


class StorageWatch:
    """The storage that some Parameters had at the last :meth:`note`."""

    def __init__(self, parameters: Iterable[Parameter]):
        self.parameters = list({id(p): p for p in parameters}.values())
        self._noted: list[int] = []
        self._storage: list[Parameter] = []

    @property
    def noted(self) -> bool:
        """True if the storage has been noted since the start, or since :meth:`forget`."""
        return bool(self._noted)

    @property
    def moved(self) -> bool:
        """True if a Parameter has other storage than was noted; False before anything was noted."""
        return self.noted and self._noted != _addresses(self.parameters)

    def note(self) -> None:
        """Remember the present storage."""
        now = _addresses(self.parameters)
        if now != self._noted:
            self._noted, self._storage = now, [_sharing(each) for each in self.parameters]

    def restore(self) -> None:
        """Copy values that lie elsewhere into the noted storage, and give their Parameters this storage again."""
        for parameter, then, old in zip(self.parameters, self._noted, self._storage, strict=True):
            if address(parameter) != then:
                new = _sharing(parameter)
                parameter.set_data(old)
                ops.assign(parameter, new)

    def forget(self) -> None:
        """Forget the noted storage."""
        self._noted, self._storage = [], []


def _addresses(parameters: Iterable[Parameter]) -> list[int]:
    """Where Parameters' values lie."""
    return [address(parameter) for parameter in parameters]


def _sharing(parameter: Parameter) -> Parameter:
    """A Parameter that has the present storage of this one."""
    other = Parameter(Tensor(np.zeros(parameter.shape, np.float32)).astype(parameter.dtype), requires_grad=False)
    other.set_data(parameter)
    return other
