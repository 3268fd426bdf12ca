"""Where the values lie that compiled graphs read, and whether they still lie there.

A compiled graph goes on reading the storage that it was compiled with. ``load_param_into_net`` and ``set_data`` give a
Parameter new storage, and the graph would silently go on with the old values.
"""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import Parameter

from thor.runtime.parameters import addresses


class StorageWatch:
    """The storage of some Parameters, as it was when it was last noted."""

    def __init__(self, parameters: Iterable[Parameter]):
        self.parameters = list(parameters)
        self._noted: list[int] = []

    @property
    def noted(self) -> bool:
        """True if the storage has been noted since the start, or since :meth:`forget`."""
        return bool(self._noted)

    @property
    def moved(self) -> bool:
        """True if a Parameter has other storage than was noted; False before anything was noted."""
        return self.noted and self._noted != addresses(self.parameters)

    def note(self) -> None:
        """Remember the present storage."""
        self._noted = addresses(self.parameters)

    def forget(self) -> None:
        """Nothing is noted any more."""
        self._noted = []
