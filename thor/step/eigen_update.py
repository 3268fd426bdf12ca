"""The compiled end of a step in eigenbases: gradients are turned, Adam makes a step there, and it is turned back."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import ParameterTuple, nn, ops

from first_order.adam import bias_correction, moments_after
from first_order.tensors import scalar
from thor.curvature.basis_layer import BasisLayer
from thor.distributed.ranks import Ranks
from thor.runtime.graph_ops import entry, nested_entry, over
from thor.step.adam_moments import AdamMoments, largest_step
from thor.step.finite_check import summary_of_all
from thor.step.layer_update import LayerUpdate

_cast = ops.Cast()


class EigenUpdate(LayerUpdate):
    """Adam in the eigenbasis of every captured layer's factors, and plain Adam for all other weights.

    With R = Q_G^T dW Q_A, a layer's direction is Q_G U Q_A^T, where U is Adam's step from the running averages of R and
    of R^2, and the learning rate of a layer in a basis is ``rate_factor`` times the given one. Nothing changes if the
    loss or a gradient is not finite.
    """

    def __init__(
        self, inner: nn.Optimizer, layers: Sequence[BasisLayer], moments: AdamMoments, beta1: float, beta2: float,
        epsilon: float, rate_factor: float, decays: tuple[float, ...], clip_each: float | None = None,
        ranks: Ranks | None = None,
    ):  # fmt: skip
        super().__init__(inner, layers, decays, clip_each, ranks)
        self.held = tuple(layer.held for layer in layers)
        #: the moments of the layers, then those of the other weights, whose places are ``plain``
        self.first = ParameterTuple([layer.first for layer in layers] + moments.first)
        self.second = ParameterTuple([layer.second for layer in layers] + moments.second)
        self.plain = tuple(range(len(layers), len(self.first)))
        self.steps = moments.steps
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.factors = tuple(rate_factor if layer.caches else 1.0 for layer in layers)
        limit = largest_step(beta1, beta2)
        self.limits, self.limited = tuple(limit * factor for factor in self.factors), limit < float("inf")
        self.summary_of_all = summary_of_all()

    def construct(self, loss, gradients):
        """(loss, whether the step was finite and done), for unscaled gradients in the inner optimizer's order."""
        gradients = self.clipped_each(gradients)
        by_layer = over(ops.partial(self.gradients_of, gradients), self.weights_at)
        others = over(ops.partial(entry, gradients), self.others)
        finite = ops.isfinite(_cast(loss, ms.float32) + self.summary_of_all(gradients))
        directions = ()
        if self.across is not None:  # no rank may wait for another one within a branch
            found, directions, plain = self._steps(by_layer, others)
            directions = self.from_row(directions, by_layer)
        if finite:
            if self.across is None:
                found, directions, plain = self._steps(by_layer, others)
            over(self._store, found + plain, self.layers + self.plain)
            ops.assign(self.steps, self.steps + 1)
            moves = directions + (over(_step_of, plain) if self.plain else (),)
            loss = self.move(loss, over(ops.partial(nested_entry, moves), self.sources))
        return loss, finite

    def _steps(self, by_layer, others):
        """(moments and step in the basis of each layer, directions of each layer, moments and step of other weights).

        Moments and step are (first, second, step).
        """
        beta1, beta2 = scalar(self.beta1, ms.float32), scalar(self.beta2, ms.float32)
        correction = bias_correction(self.steps + 1, beta1, beta2, ms.float32)
        grouped = self.grouped(by_layer)
        turned = self.by_layer(over(self._turned, grouped, self.caches_at, self.groups))
        found = over(ops.partial(self._step_in_basis, correction), turned, self.layers)
        steps = self.grouped(over(_step_of, found))
        directions = self.cut(over(self._turned_back, steps, self.caches_at, self.groups), grouped)
        plain = over(ops.partial(self._step, correction), others, self.plain) if self.plain else ()
        return found, directions, plain

    def _turned(self, gradients, at, group):
        """The gradients of a group's layers in their bases."""
        cell = self.cells_of_groups[group]
        return cell.by_layer(cell(cell.matrices(gradients)[0], self.caches_of(at)))

    def _turned_back(self, steps, at, group):
        """The steps of a group's layers, turned back, as matrices."""
        cell = self.cells_of_groups[group]
        return (cell.back(cell.stacked(steps), self.caches_of(at)),)

    def _step_in_basis(self, correction, turned, i):
        if not self.held[i]:
            return self.first[i], self.second[i], ops.zeros_like(turned)
        first, second, step = self._step(correction * self.factors[i], turned, i)
        if self.limited:
            step = ops.clamp(step, -self.limits[i], self.limits[i])
        return first, second, step

    def _step(self, correction, gradient, i):
        """Adam's moments after a step, and the step: correction * m / (sqrt(v) + epsilon)."""
        gradient = _cast(gradient, ms.float32)
        first, second = moments_after(self.first[i], self.second[i], gradient, self.beta1, self.beta2)
        return first, second, correction * (first / (ops.sqrt(second) + self.epsilon))

    def _store(self, found, i):
        ops.assign(self.first[i], found[0])
        return ops.assign(self.second[i], found[1])


def _step_of(found):
    return found[2]
