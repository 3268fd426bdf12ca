"""The compiled end of a step: gradients are preconditioned, and the inner optimizer moves the weights."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import nn, ops

from thor.curvature.layer import InverseLayer
from thor.distributed.ranks import Ranks
from thor.runtime.graph_ops import dot, entry, nested_entry, over, reshaped, times
from thor.step.finite_check import summary_of_all
from thor.step.layer_update import LayerUpdate, Moving

_cast, _sum = ops.Cast(), ops.ReduceSum()
TINY = 1e-37  # a normal float32, added to a squared norm that may be zero


class Update(LayerUpdate):
    """Precondition the captured gradients, limit the step, and let the inner optimizer move the weights.

    With ``clip``, the captured directions are scaled by min(1, sqrt(clip / sum lr^2 <g, d>)). The step's squared length
    in the norm of the curvature, which is twice its KL divergence to second order, then stays below ``clip`` (Ba,
    Grosse & Martens 2017). With ``graft``, each layer's direction is scaled to the norm of its gradient (Anil et al.
    2020), so that the inner optimizer's own learning rate fits.

    One number tells whether everything is finite: with ``clip`` the sum of all <gradient, direction>, else the sum of
    the directions' finiteness summaries (finite_check.py). The latter suffices, because a non-finite gradient never
    gives a finite direction. If the number is not finite, nothing moves. The branch on it also keeps MindSpore's CPU
    runtime from running the products of the backward pass in several threads, where they slow each other down.

    Before that branch a layer's direction stays one matrix of weight and bias. MindSpore ends a graph at a branch, and
    copies each tensor that was cut or reshaped before with a kernel of its own.
    """

    def __init__(
        self, inner: nn.Optimizer, layers: Sequence[InverseLayer], clip: float | None, decays: tuple[float, ...],
        clip_each: float | None = None, ranks: Ranks | None = None, graft: bool = False,
    ):  # fmt: skip
        super().__init__(inner, layers, decays, clip_each, ranks)
        self.clip, self.graft = 0.0 if clip is None else float(clip), graft
        # a direction stays one matrix unless weight and bias are treated separately: sent to other ranks, moved at
        # different rates, or cast to float16, where a direction may overflow that is finite in float32
        float16 = any(layer.weight.dtype == ms.float16 for layer in layers)
        self.by_weight = self.across is not None or float16 or (self.clip > 0 and self.group_rates)
        groups, units = self.form_groups, self.layers if self.by_weight else self.groups
        first = self.layers if self.by_weight else tuple(members[0] for members in self.group_members)
        two = [
            len(self.weights_at[i]) == 2 and (self.by_weight or groups[unit].cell.bias_apart)
            for unit, i in enumerate(first)
        ]
        #: (layer or group, part) of all matrices of directions, and the index of the learning rate of each
        self.parts = tuple((unit, 0) for unit in units) + tuple((unit, 1) for unit in units if two[unit])
        self.rates_at = tuple(self.weights_at[first[unit]][part] for unit, part in self.parts)
        #: number of layers that a matrix of directions holds
        self.layers_in = tuple(1 if self.by_weight else len(self.group_members[unit]) for unit in units)

    def construct(self, loss, gradients):
        """(loss, whether the step was finite and done), for unscaled gradients in the inner optimizer's order."""
        gradients = self.clipped_each(gradients)
        by_layer = over(ops.partial(self.gradients_of, gradients), self.weights_at)
        grouped = self.grouped(by_layer)
        matrices = over(self.matrices_of, grouped, self.groups)
        directions = over(self._directions, matrices, self.caches_at, self.groups)
        if self.by_weight:
            matrices, directions = by_layer, self.cut(directions, grouped)
        if self.across is not None:
            directions = self.from_row(directions, by_layer, gradients)
        if self.graft:
            directions = over(_grafted, directions, matrices, self.layers_in)
        others = over(ops.partial(entry, gradients), self.others)
        products = over(ops.partial(self._product, matrices, directions), self.parts)
        total = _cast(loss, ms.float32) + ops.addn(products + over(self.summary, others))
        if self.clip > 0:
            directions = over(ops.partial(over, ops.partial(times, self._limit(products))), directions)
        finite = ops.isfinite(total)
        if finite:
            cut = directions
            if not self.by_weight:  # a second cut would leave MindSpore without a direction's shape
                cut = self.cut(directions, grouped)
            loss = self.move(loss, over(ops.partial(nested_entry, cut + (others,)), self.sources))
        else:
            loss = self.stay(loss)
        return loss, finite

    def _directions(self, matrices, at, group):
        return self.cells_of_groups[group](matrices, self.caches_of(at))

    def _product(self, gradients, directions, place):
        if self.clip > 0:
            return dot(nested_entry(gradients, place), nested_entry(directions, place))
        return self.summary(nested_entry(directions, place))  # reads one matrix, not two

    def _limit(self, products):
        """The factor min(1, sqrt(clip / sum lr^2 <g, d>)), with the sum over captured layers."""
        rate = self.inner.get_lr()
        if self.group_rates:
            curvature = ops.addn(over(ops.partial(self._share_of_curvature, rate), products, self.rates_at))
        else:
            curvature = rate * rate * ops.addn(products)
        return ops.minimum(ops.sqrt(self.clip / (ops.relu(curvature) + 1e-30)), 1.0)  # rounding may give < 0

    def _share_of_curvature(self, rates, product, at):
        return rates[at] * rates[at] * product


def _grafted(directions, gradients, layers):
    """The directions of so many layers, each scaled to the norm of its gradients."""
    squares = ops.partial(_squares_by_layer, layers)
    own, wanted = ops.addn(over(squares, directions)), ops.addn(over(squares, gradients))
    return over(ops.partial(_times_by_layer, layers, ops.sqrt(wanted / (own + TINY))), directions)


def _squares_by_layer(layers, stack):
    """The sum of squares of each layer's part of a stack: a vector, or for one layer a number."""
    if layers == 1:
        return dot(stack, stack)
    rows = reshaped(stack, (layers, -1))
    return _sum(rows * rows, 1)


def _times_by_layer(layers, factors, stack):
    """Each layer's part of a stack times its factor."""
    if layers == 1:
        return times(factors, stack)
    return reshaped(reshaped(stack, (layers, -1)) * reshaped(factors, (layers, 1)), stack.shape)


class PlainUpdate(Moving):
    """Let an optimizer move the weights by their gradients; nothing moves if loss or gradients are not finite.

    With ``clip_norm``, the gradients are first scaled so that the norm of all of them together is at most that.
    """

    def __init__(self, inner: nn.Optimizer, clip_norm: float | None = None):
        super().__init__(inner, (0.0,) * len(inner.parameters))
        self.clip_norm = 0.0 if clip_norm is None else float(clip_norm)
        self.summary_of_all = summary_of_all()

    def construct(self, loss, gradients):
        """(loss, whether the step was finite and done), for unscaled gradients in the optimizer's order."""
        if self.clip_norm > 0:
            norm = summary = ops.sqrt(ops.addn(over(dot, gradients, gradients)))  # not finite if an entry is not
            gradients = over(ops.partial(times, ops.minimum(self.clip_norm / (norm + 1e-12), 1.0)), gradients)
        else:
            summary = self.summary_of_all(gradients)
        finite = ops.isfinite(_cast(loss, ms.float32) + summary)
        if finite:
            loss = self.move(loss, gradients)
        else:
            loss = self.stay(loss)
        return loss, finite
