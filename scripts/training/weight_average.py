"""A running average of the weights (EMA), which often scores better than the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from first_order.cells import set_unregistered
from first_order.compiled import CompiledFunction
from scripts.run_folder.checkpoints import AVERAGE_PREFIX


class WeightAverage(nn.Cell):
    """average <- d average + (1 - d) weight after each update, over weights and normalisation statistics.

    d = min(decay, (1 + n) / (10 + n)) at update n, so that the initial weights are soon forgotten. The averages are
    Parameters called `ema.NAME` and part of a checkpoint. The caller counts n, so there is no other state.
    """

    def __init__(self, network: nn.Cell, decay: float, graph: bool = True) -> None:
        super().__init__(auto_prefix=False)
        self._decay = decay
        weights = [p for p in network.get_parameters() if p.dtype in (ms.float32, ms.float16)]
        self.averages = ParameterTuple(
            Parameter(Tensor(w.asnumpy().copy()), name=f"{AVERAGE_PREFIX}{w.name}", requires_grad=False)
            for w in weights
        )
        set_unregistered(self, _weights=weights)  # not as children: the weights belong to the network
        self._compiled = CompiledFunction(self._function()) if graph else self._function()

    def update(self, number: int) -> None:
        """Update the averages with the weights after update `number`, counted from 0."""
        decay = min(self._decay, (1 + number) / (10 + number))
        self._compiled(Tensor(np.float32(1.0 - decay)))

    def of(self, weights: Sequence[Parameter]) -> list[Parameter]:
        """The averages of the given weights."""
        wanted = {f"{AVERAGE_PREFIX}{weight.name}" for weight in weights}
        return [average for average in self.averages if average.name in wanted]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """In the enclosed block, the network's weights are the averages."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _function(self) -> Callable[[Tensor], Tensor]:
        averages, weights = tuple(self.averages), tuple(self._weights)

        def update(share: Tensor) -> Tensor:
            done = share
            for average, weight in zip(averages, weights):  # noqa: B905 (the graph parser knows no strict=)
                moved = average + share.astype(average.dtype) * (weight - average)
                done = ops.depend(done, ops.assign(average, moved))
            return done

        return update

    def _exchange(self) -> None:
        """Swap weights and averages. `ops.assign` writes to the storage of compiled functions; set_data does not."""
        for average, weight in zip(self.averages, self._weights, strict=True):
            mean, value = average.asnumpy().copy(), weight.asnumpy().copy()
            ops.assign(weight, Tensor(mean))
            ops.assign(average, Tensor(value))
