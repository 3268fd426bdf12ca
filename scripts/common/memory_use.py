"""Memory use of a run, by purpose."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindspore import nn


def memory(network: nn.Cell, optimizer: nn.Cell, average: nn.Cell | None = None, peak: int = 0) -> dict[str, Any]:
    """Bytes of the weights, the optimizer's state, the weight average, and thor.THOR's curvature; and the peak.

    Args:
        network: Its weights are counted once, not as part of the optimizer.
        optimizer: Any optimizer; "curvature" is empty unless it is a thor.THOR.
        average: The running average of the weights, if there is one.
        peak: Peak memory of the run's earlier processes, for a resumed run.
    """
    weights = {id(parameter): parameter.nbytes for parameter in network.get_parameters()}
    state = sum(p.nbytes for p in optimizer.get_parameters() if id(p) not in weights)
    layers: dict[str, int] = optimizer.memory() if hasattr(optimizer, "layers") else {}  # only thor.THOR
    return {
        "weights": sum(weights.values()),
        "optimizer": state,
        "average": sum(p.nbytes for p in average.get_parameters()) if average else 0,
        "curvature": layers,
        "peak": max(peak, peak_memory()),
    }


def peak_memory() -> int:
    """Peak resident memory of this process, in bytes; on Linux without the peak that it inherits from its parent."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/status").read_text(encoding="ascii").split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
