"""The training step of first-order optimizers: one compiled function per batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from first_order.compiled import CompiledFunction
from scripts.settings.train_settings import TrainSettings
from thor.distributed.reduce import Across, mean_over_ranks
from thor.runtime.graph_ops import dot, over, scaled
from thor.settings.loss_scale import DynamicLossScale
from thor.step.finite_check import summary_of_all
from thor.step.moving_averages import MovingAverages

Compiled = Callable[..., Any]


class FirstOrderStep:
    """Computes the loss of a batch; every `accumulation`-th call updates the weights with the mean gradient.

    The finite check reduces all gradients to one number. The check and the branch on it are part of the compiled graph:
    without a branch, MindSpore's CPU runtime spreads the kernels over threads that slow each other down
    (docs/speed.md).

    In a data-parallel job, loss and gradients are averaged over the ranks before the check, so that all ranks make the
    same decision and the same step. All ranks have equal weight, even if their numbers of labels differ, as in masked
    text. With accumulation, the sums of gradients are averaged once per update; a micro-batch exchanges two numbers.

    If a gradient is not finite, the weights do not change, and normalisation's moving averages are restored.

    `state` is the dynamic loss scale, which a checkpoint needs in addition to network and optimizer.
    """

    def __init__(self, network: nn.Cell, loss: nn.Cell, optimizer: nn.Cell, settings: TrainSettings) -> None:
        self._every = settings.accumulation
        self._calls = 0
        self.flushed = 0  # 1 once the second function has been compiled
        self._moving = MovingAverages(network)
        self.state = LossScale(None if settings.loss_scale != "dynamic" else DynamicLossScale())
        fixed = 1.0 if self.state.rule else float(settings.loss_scale)
        shapes = [weight.shape for weight in optimizer.parameters]
        ranks = settings.data.ranks
        across = mean_over_ranks(ranks if self._every == 1 else 1, [(), *shapes])
        gradients = _gradients(network, loss, optimizer.parameters, fixed, self._every, across)
        update = _clipped(optimizer, settings.clip_norm)
        if self.state.rule:
            steps = [_guarded_update(network, loss, optimizer.parameters, update, across)]
        elif self._every == 1:
            steps = [_update(gradients, update)]
        else:
            sums = tuple(_zeros(weight) for weight in optimizer.parameters)
            steps = [
                _add(gradients, sums, mean_over_ranks(ranks, [(), ()])),
                _flush(sums, update, mean_over_ranks(ranks, shapes)),
            ]
        self._steps = [CompiledFunction(step) for step in steps] if settings.mode == "graph" else steps

    def __call__(self, *batch: Tensor) -> Tensor:
        """Loss of a batch (inputs, then targets); FloatingPointError if the loss or a gradient is not finite."""
        self._calls += 1
        self._moving.before_step()
        if self.state.rule:
            batch = (Tensor(np.float32(self.state.value)), *batch)
        loss, seen = self._steps[0](*batch)
        finite = bool(np.isfinite(seen.asnumpy()))
        if not finite:
            self._moving.mend()
        if self.state.rule:
            finite = self.state.after(finite)
        if not finite:
            raise FloatingPointError(f"gradients are not finite (loss {float(loss.asnumpy()):g})")
        if self._every > 1 and self._calls % self._every == 0:
            self._steps[1]()
            self.flushed = 1
        return loss


class LossScale(nn.Cell):
    """The current value of a dynamic loss scale, as Parameters; no Parameters if the scale is fixed."""

    def __init__(self, rule: DynamicLossScale | None) -> None:
        super().__init__(auto_prefix=False)
        self.rule = rule
        if rule:
            self.scale = Parameter(Tensor(np.float32(rule.initial)), name="loss_scale.scale", requires_grad=False)
            self.good = Parameter(Tensor(np.int32(0)), name="loss_scale.good_steps", requires_grad=False)

    @property
    def value(self) -> float:
        """Loss scale of the next step."""
        return float(self.scale.asnumpy())

    def after(self, finite: bool) -> bool:
        """Adjust the scale after a step; False if the step overflowed at the lowest scale."""
        assert self.rule is not None
        good = int(self.good.asnumpy()) + 1 if finite else 0
        scale: float | None = self.value if finite else self.rule.fallen(self.value)
        if scale is None:
            return False
        if good >= self.rule.window:
            scale, good = self.rule.grown(scale), 0
        self.scale.set_data(Tensor(np.float32(scale)))
        self.good.set_data(Tensor(np.int32(good)))
        return True


def _zeros(weight: Parameter) -> Parameter:
    """A Parameter for the sum of a weight's gradients, initially zero."""
    return Parameter(Tensor(np.zeros(weight.shape, np.float32)), name=f"sum.{weight.name}", requires_grad=False)


def _gradients(
    network: nn.Cell, loss: nn.Cell, weights: Any, loss_scale: float, every: int, across: Across
) -> Compiled:
    """A function of a batch: (loss, gradients / `every` without the loss scale, result of the finite check)."""

    def forward(*batch: Tensor) -> tuple[Tensor, Tensor]:
        value = loss(network(*batch[:-1]), batch[-1])
        return value * loss_scale, value

    differentiate = ms.value_and_grad(forward, None, weights, has_aux=True)
    factor, summarize = 1.0 / (loss_scale * every), summary_of_all()

    def gradients(*batch: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        (_, value), grads = differentiate(*batch)
        if factor != 1.0:
            grads = scaled(factor, grads)
        reduced = across((value, *grads))
        value, grads = reduced[0], reduced[1:]
        return value, grads, summarize((value, *grads))

    return gradients


def _clipped(optimizer: nn.Cell, limit: float | None) -> Compiled:
    """The optimizer as a function of gradients, which are clipped to a global norm before."""

    def update(grads: tuple[Tensor, ...]) -> Tensor:
        if limit is not None:
            grads = scaled(ops.minimum(limit / (ops.sqrt(ops.addn(over(dot, grads, grads))) + 1e-12), 1.0), grads)
        return optimizer(grads)

    return update


def _update(gradients: Compiled, optimizer: Compiled) -> Compiled:
    """A step that updates the weights if loss and gradients are finite."""

    def update(*batch: Tensor) -> tuple[Tensor, Tensor]:
        value, grads, seen = gradients(*batch)
        if ops.isfinite(seen):
            seen = ops.depend(seen, optimizer(grads))
        return value, seen

    return update


def _guarded_update(network: nn.Cell, loss: nn.Cell, weights: Any, optimizer: Compiled, across: Across) -> Compiled:
    """A step with a dynamic loss scale as first argument; no update if a gradient overflows."""

    def forward(scale: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        value = loss(network(*batch[:-1]), batch[-1])
        return value * scale, value

    differentiate, summarize = ms.value_and_grad(forward, None, weights, has_aux=True), summary_of_all()

    def update(scale: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        (_, value), grads = differentiate(scale, *batch)
        inverse = 1.0 / scale
        reduced = across((value, *scaled(inverse, grads)))
        value, grads = reduced[0], reduced[1:]
        seen = summarize((value, *grads))
        if ops.isfinite(seen):
            seen = ops.depend(seen, optimizer(grads))
        return value, seen

    return update


def _add(gradients: Compiled, sums: tuple[Parameter, ...], across: Across) -> Compiled:
    """A step that adds a batch's gradients to the sums if loss and gradients are finite."""

    def add(*batch: Tensor) -> tuple[Tensor, Tensor]:
        value, grads, seen = gradients(*batch)
        if ops.isfinite(seen):
            for total, grad in zip(sums, grads):  # noqa: B905 (the graph parser knows no strict=)
                seen = ops.depend(seen, ops.assign_add(total, grad))
        reduced = across((value, seen))
        return reduced[0], reduced[1]

    return add


def _flush(sums: tuple[Parameter, ...], optimizer: Compiled, across: Across) -> Compiled:
    """A step that updates the weights with the sums and resets the sums to zero."""

    def flush() -> Tensor:
        grads = across(scaled(1.0, sums))
        done = optimizer(grads)
        for total in sums:
            done = ops.depend(done, ops.assign(total, ops.depend(ops.zeros_like(total), done)))
        return done

    return flush
