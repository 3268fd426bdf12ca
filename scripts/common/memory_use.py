"""How much memory a run holds, by what it is for."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindspore import nn


def memory(network: nn.Cell, optimizer: nn.Cell, average: nn.Cell | None = None, peak: int = 0) -> dict[str, Any]:
    """Bytes of the weights, of the optimizer's state, of thor.THOR's curvature per layer, and the process's peak.

    ``peak`` is that of the processes before, where a run was resumed.
    """
    weights = {id(parameter): parameter.nbytes for parameter in network.get_parameters()}
    state = sum(p.nbytes for p in optimizer.get_parameters() if id(p) not in weights)
    layers: dict[str, int] = optimizer.memory() if hasattr(optimizer, "layers") else {}  # thor.THOR alone
    return {
        "weights": sum(weights.values()),
        "optimizer": state,
        "average": sum(p.nbytes for p in average.get_parameters()) if average else 0,
        "curvature": layers,
        "peak": max(peak, peak_memory()),
    }


def peak_memory() -> int:
    """The most bytes of memory that this process has held; on Linux without what the process that started it held."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/status").read_text(encoding="ascii").split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
