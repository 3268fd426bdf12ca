"""The compiled end of a step: gradients are preconditioned, and the inner optimizer moves the weights."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, nn, ops

from thor.curvature.layer import Layer
from thor.distributed.ranks import Ranks
from thor.distributed.reduce import Sums
from thor.runtime.graph_ops import dot, entry, nested_entry, over, times
from thor.step.finite_check import probe

_cast = ops.Cast()


class Update(nn.Cell):
    """Precondition the captured gradients, limit the step, and let the inner optimizer move the weights.

    With ``clip``, the captured directions are scaled by min(1, sqrt(clip / sum lr^2 <g, d>)): the step's size in the
    norm of the curvature, twice its KL divergence to second order, stays below ``clip`` (Ba, Grosse & Martens 2017).

    ``decays``, one for each of the inner optimizer's weights, are decoupled: w <- (1 - lr decay) w before the step.

    With ``clip_each``, each weight's gradient is first scaled to at most that norm. In a data-parallel job whose ranks
    hold some layers' inverses only, each preconditions those, and the directions are summed over a row of ranks, of
    which one has the layer's and the others zeros.

    One number, the sum of all <gradient, direction>, tells whether everything is finite; if not, nothing moves. Without
    ``clip`` it is the sum of what finite_check.py makes of directions: no inverse makes a finite number of one that is
    not.
    The branch on it also keeps MindSpore's CPU runtime from spreading the backward products over threads that slow each
    other down.

    Until the weights move, a layer's direction stays the one matrix of weight and bias that it was made as: where a
    graph ends, as before the branch on ``finite``, what was cut and reshaped is copied, by one kernel for each.
    """

    def __init__(
        self, inner: nn.Optimizer, layers: list[Layer], clip: float | None, decays: tuple[float, ...],
        clip_each: float | None = None, ranks: Ranks | None = None,
    ):  # fmt: skip
        super().__init__(auto_prefix=False)
        no_more_parameters(inner, decays)
        self.inner, self.look = inner, probe()
        self.weights = inner.parameters
        self.layers, self.indices = tuple(range(len(layers))), tuple(range(len(inner.parameters)))
        caches = [layer.caches for layer in layers]
        self.caches = ParameterTuple([p for each in caches for p in each])
        ends = np.cumsum([len(each) for each in caches]).tolist()
        self.caches_at = tuple(tuple(range(end - len(each), end)) for end, each in zip(ends, caches, strict=True))
        self.directions = nn.CellList([layer.direction() for layer in layers])
        position = {id(weight): index for index, weight in enumerate(inner.parameters)}
        own = [[position[id(w)] for w in (layer.weight, layer.bias) if w is not None] for layer in layers]
        self.weights_at = tuple(map(tuple, own))
        # (layer, which of its directions) for each weight, and behind the layers those that take the plain gradient
        made = {at: (i, part) for i, each in enumerate(own) for part, at in enumerate(each)}
        self.captured = tuple(sorted(made))
        self.others = tuple(i for i in self.indices if i not in made)
        made |= {at: (len(layers), part) for part, at in enumerate(self.others)}
        self.made_by, self.made_as = (tuple(made[i][side] for i in self.indices) for side in (0, 1))
        self.sums_at = tuple(tuple(self.captured.index(at) for at in each) for each in own)
        self.across = self._sums_over_row(ranks)
        self.clip = 0.0 if clip is None else float(clip)
        self.clip_each = 0.0 if clip_each is None else float(clip_each)
        self.decays = decays
        self.decay_at = tuple(i for i in self.indices if self.decays[i])
        self.group_rates = bool(inner.is_group_lr)
        # matrices in one piece, unless weight and bias go their own ways: to other ranks, or at rates of their own
        # or to float16, where a direction may overflow that did not in float32
        halves = any(layer.weight.dtype == ms.float16 for layer in layers)
        self.by_weight = self.across is not None or halves or (self.clip > 0 and self.group_rates)
        apart = [layer.a.bias_inverse is not None for layer in layers]
        parts = [(i, 0) for i in self.layers]
        parts += [(i, 1) for i in self.layers if len(own[i]) == 2 and (self.by_weight or apart[i])]
        self.part_of, self.part = tuple(i for i, _ in parts), tuple(part for _, part in parts)
        self._captured_by, self._captured_as = (tuple(made[at][side] for at in self.captured) for side in (0, 1))
        self.rate_at = tuple(own[i][part] for i, part in parts)

    def _sums_over_row(self, ranks: Ranks | None) -> Sums | None:
        """How ranks hand each other directions; None where each computes all of them."""
        if ranks is None or ranks.row is None:
            return None
        shapes = [self.weights[at].shape for at in self.captured]
        return Sums(shapes, [False] * len(shapes), ranks.sharing.fusion, ranks.row)

    def construct(self, loss, gradients):
        """(loss, whether the step was finite and done) for unscaled gradients in the inner optimizer's order."""
        if self.clip_each > 0:
            gradients = over(ops.partial(clipped, self.clip_each), gradients)
        mine = over(ops.partial(self._gradients_of, gradients), self.weights_at)
        given = over(self._matrices, mine, self.layers)
        made = over(self._directions, given, self.caches_at, self.layers)
        if self.by_weight:
            given, made = mine, over(self._cut, made, mine, self.layers)
        if self.across is not None:
            sums = self.across(over(ops.partial(nested_entry, made), self._captured_by, self._captured_as), 1.0)
            made = over(ops.partial(self._from_row, sums), mine, self.sums_at)
        others = over(ops.partial(entry, gradients), self.others)
        products = over(ops.partial(self._product, given, made), self.part_of, self.part)
        total = _cast(loss, ms.float32) + ops.addn(products + over(self.look, others))
        if self.clip > 0:
            made = over(ops.partial(over, ops.partial(times, self._limit(products))), made)
        finite = ops.isfinite(total)
        if finite:
            for i in self.decay_at:
                ops.assign(self.weights[i], self.weights[i] * (1.0 - self._rate(i) * self.decays[i]))
            cut = made
            if not self.by_weight:  # what is cut may not be cut again: MindSpore gives a direction no shape then
                cut = over(self._cut, made, mine, self.layers)
            moves = over(ops.partial(nested_entry, cut + (others,)), self.made_by, self.made_as)
            loss = ops.depend(loss, self.inner(moves))
        return loss, finite

    def _gradients_of(self, gradients, at):
        """(of the weight,) or (of the weight, of the bias) of a layer."""
        return over(ops.partial(entry, gradients), at)

    def _matrices(self, mine, i):
        return self.directions[i].matrices(mine)

    def _directions(self, matrices, at, i):
        return self.directions[i](matrices, over(ops.partial(entry, self.caches), at))

    def _cut(self, made, mine, i):
        return self.directions[i].cut(made, mine)

    def _from_row(self, sums, mine, at):
        """The directions of a layer, from the rank of this row that has its inverses."""
        return over(ops.partial(self._typed, sums), mine, at)

    def _typed(self, sums, gradient, at):
        return _cast(sums[at], gradient.dtype)

    def _product(self, given, made, i, part):
        if self.clip > 0:
            return dot(given[i][part], made[i][part])
        return self.look(made[i][part])  # to find what is not finite, one matrix is read and not two

    def _limit(self, products):
        """min(1, sqrt(clip / sum lr^2 <g, d>)) over what layers make."""
        rate = self.inner.get_lr()
        if self.group_rates:
            curvature = ops.addn(over(ops.partial(self._share_of_curvature, rate), products, self.rate_at))
        else:
            curvature = rate * rate * ops.addn(products)
        return ops.minimum(ops.sqrt(self.clip / (ops.relu(curvature) + 1e-30)), 1.0)  # rounding may go below 0

    def _share_of_curvature(self, rates, product, at):
        return rates[at] * rates[at] * product

    def _rate(self, index):
        rate = self.inner.get_lr()
        if self.group_rates:
            rate = rate[index]
        return rate


def no_more_parameters(inner: nn.Optimizer, decays: tuple[float, ...]) -> None:
    """Refuse an optimizer that was given Parameters (Adafactor's ``add_param_group``) after THOR had read them."""
    if len(inner.parameters) != len(decays):
        raise ValueError("inner was given more Parameters since THOR was made of it: give it all of them before")


def clipped(limit, gradient):
    """The gradient, scaled to at most that norm."""
    norm = ops.sqrt(dot(gradient, gradient))  # if infinite, 0 times infinity is found to be no number
    return times(ops.minimum(limit / (norm + 1e-12), 1.0), gradient)
