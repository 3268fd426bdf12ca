"""Detection of Parameters that got new storage, which compiled graphs do not read.

A compiled graph goes on reading the storage that it was compiled with. ``load_param_into_net`` and ``set_data`` give a
Parameter new storage, and the graph would silently use the old values.
"""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import Parameter

from thor.runtime.parameters import addresses


class StorageWatch:
    """Compares the storage of some Parameters with their storage at the last :meth:`note`."""

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
        """Forget the noted storage."""
        self._noted = []
