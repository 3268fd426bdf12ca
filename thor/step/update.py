"""The compiled end of a step: gradients are preconditioned, and the inner optimizer moves the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, nn, ops

from thor.curvature.layer import Layer
from thor.distributed.ranks import Ranks
from thor.distributed.reduce import Sums
from thor.runtime.graph_ops import dot, entry, nested_entry, over, times
from thor.step.finite_check import finiteness_summary, summary_of_all

_cast = ops.Cast()


@dataclass(frozen=True)
class WeightPlace:
    """The source of one weight's move.

    Attributes:
        layer: index of the captured layer that the weight belongs to; the number of layers if the weight takes the
            plain gradient.
        part: 0 for a layer's weight, 1 for its bias; for a plain gradient, its index among the plain gradients.
        rate: index of the weight's learning rate if groups have different rates.
        decay: decoupled weight decay, w <- (1 - lr decay) w before the step.
    """

    layer: int
    part: int
    rate: int
    decay: float


def weight_places(
    weights: Sequence[Parameter], layers: Sequence[Layer], decays: Sequence[float]
) -> tuple[WeightPlace, ...]:
    """The place of each weight, in the order of the inner optimizer."""
    place_of = {
        id(w): (i, part) for i, y in enumerate(layers) for part, w in enumerate((y.weight, y.bias)) if w is not None
    }
    plain = [id(w) for w in weights if id(w) not in place_of]
    place_of |= {weight: (len(layers), part) for part, weight in enumerate(plain)}
    return tuple(WeightPlace(*place_of[id(w)], rate, decays[rate]) for rate, w in enumerate(weights))


class Update(nn.Cell):
    """Precondition the captured gradients, limit the step, and let the inner optimizer move the weights.

    With ``clip``, the captured directions are scaled by min(1, sqrt(clip / sum lr^2 <g, d>)). The step's squared length
    in the norm of the curvature, which is twice its KL divergence to second order, then stays below ``clip`` (Ba,
    Grosse & Martens 2017).

    With ``clip_each``, each weight's gradient is first scaled to at most that norm.

    Weights whose index is in ``frozen`` do not move, whatever the inner optimizer does with a gradient of zero.

    ``decays``, one for each of the inner optimizer's weights, are decoupled: w <- (1 - lr decay) w before the step.

    If the ranks of a data-parallel job hold the inverses of some layers only, each rank preconditions these layers, and
    the directions are summed over a row of ranks. One rank of the row adds a layer's direction, the others add zeros.

    One number tells whether everything is finite: with ``clip`` the sum of all <gradient, direction>, else the sum of
    the directions' finiteness summaries (finite_check.py). The latter suffices, because a non-finite gradient never
    gives a finite direction. If the number is not finite, nothing moves. The branch on it also keeps MindSpore's CPU
    runtime from running the products of the backward pass in several threads, where they slow each other down.

    Before that branch a layer's direction stays one matrix of weight and bias. MindSpore ends a graph at a branch, and
    copies each tensor that was cut or reshaped before with a kernel of its own.
    """

    def __init__(
        self, inner: nn.Optimizer, layers: list[Layer], clip: float | None, decays: tuple[float, ...],
        clip_each: float | None = None, ranks: Ranks | None = None,
    ):  # fmt: skip
        super().__init__(auto_prefix=False)
        no_more_parameters(inner, len(decays))
        self.inner, self.summary = inner, finiteness_summary()
        self.weights, self.decays = inner.parameters, decays
        self.layers = tuple(range(len(layers)))
        caches = [layer.caches for layer in layers]
        self.caches = ParameterTuple([p for each in caches for p in each])
        ends = np.cumsum([len(each) for each in caches]).tolist()
        self.caches_at = tuple(tuple(range(end - len(each), end)) for end, each in zip(ends, caches, strict=True))
        self.directions = nn.CellList([layer.direction() for layer in layers])
        self.clip = 0.0 if clip is None else float(clip)
        self.clip_each = 0.0 if clip_each is None else float(clip_each)
        self.group_rates = bool(inner.is_group_lr)
        self.frozen: tuple[int, ...] = ()  # weights that a step leaves where they are
        places = weight_places(inner.parameters, layers, decays)
        captured = tuple(at for at, place in enumerate(places) if place.layer < len(layers))
        self.others = tuple(at for at, place in enumerate(places) if place.layer == len(layers))
        self.decayed = tuple(at for at, place in enumerate(places) if place.decay)
        #: (layer, part) of every weight's move, and of the captured weights' moves
        self.sources = tuple((place.layer, place.part) for place in places)
        self.captured_sources = tuple(self.sources[at] for at in captured)
        #: indices of a layer's weight, or of its weight and bias: among all weights, and among the captured ones
        self.weights_at = tuple(tuple(at for _, at in sorted(_parts_of(i, places))) for i in self.layers)
        self.sums_at = tuple(tuple(captured.index(at) for at in each) for each in self.weights_at)
        self.across = self._sums_over_row(ranks, captured)
        # a direction stays one matrix unless weight and bias are treated separately: sent to other ranks, moved at
        # different rates, or cast to float16, where a direction may overflow that is finite in float32
        float16 = any(layer.weight.dtype == ms.float16 for layer in layers)
        self.by_weight = self.across is not None or float16 or (self.clip > 0 and self.group_rates)
        two_matrices = [self.by_weight or layer.a.bias_inverse is not None for layer in layers]
        #: (layer, part) of all matrices of directions, and the index of the learning rate of each
        self.parts = tuple((i, 0) for i in self.layers)
        self.parts += tuple((i, 1) for i in self.layers if len(self.weights_at[i]) == 2 and two_matrices[i])
        self.rates_at = tuple(places[self.weights_at[i][part]].rate for i, part in self.parts)

    def _sums_over_row(self, ranks: Ranks | None, captured: tuple[int, ...]) -> Sums | None:
        """The sums of directions over a row of ranks; None if each rank computes all directions."""
        if ranks is None or ranks.row is None:
            return None
        shapes = [self.weights[at].shape for at in captured]
        return Sums(shapes, [False] * len(shapes), ranks.sharing.fusion, ranks.row)

    def construct(self, loss, gradients):
        """(loss, whether the step was finite and done), for unscaled gradients in the inner optimizer's order."""
        if self.clip_each > 0:
            gradients = over(ops.partial(clipped, self.clip_each), gradients)
        by_layer = over(ops.partial(self._gradients_of, gradients), self.weights_at)
        matrices = over(self._matrices, by_layer, self.layers)
        directions = over(self._directions, matrices, self.caches_at, self.layers)
        if self.by_weight:
            matrices, directions = by_layer, over(self._cut, directions, by_layer, self.layers)
        if self.across is not None:
            sums = self.across(over(ops.partial(nested_entry, directions), self.captured_sources), 1.0)
            directions = over(ops.partial(self._from_row, sums), by_layer, self.sums_at)
        others = over(ops.partial(entry, gradients), self.others)
        products = over(ops.partial(self._product, matrices, directions), self.parts)
        total = _cast(loss, ms.float32) + ops.addn(products + over(self.summary, others))
        if self.clip > 0:
            directions = over(ops.partial(over, ops.partial(times, self._limit(products))), directions)
        finite = ops.isfinite(total)
        if finite:
            frozen = over(self._copy, self.frozen) if self.frozen else ()
            for i in self.decayed:
                ops.assign(self.weights[i], self.weights[i] * (1.0 - self._rate(i) * self.decays[i]))
            cut = directions
            if not self.by_weight:  # a second cut would leave MindSpore without a direction's shape
                cut = over(self._cut, directions, by_layer, self.layers)
            moves = over(ops.partial(nested_entry, cut + (others,)), self.sources)
            loss = ops.depend(loss, self.inner(moves))
            for place, i in enumerate(self.frozen):
                ops.assign(self.weights[i], ops.depend(frozen[place], loss))
        return loss, finite

    def _copy(self, i):
        return self.weights[i] * 1.0

    def _gradients_of(self, gradients, at):
        """A layer's gradients: (weight's,) or (weight's, bias's)."""
        return over(ops.partial(entry, gradients), at)

    def _matrices(self, gradients, i):
        return self.directions[i].matrices(gradients)

    def _directions(self, matrices, at, i):
        return self.directions[i](matrices, over(ops.partial(entry, self.caches), at))

    def _cut(self, directions, gradients, i):
        return self.directions[i].cut(directions, gradients)

    def _from_row(self, sums, gradients, at):
        """The directions of a layer, from the sums over this row of ranks."""
        return over(ops.partial(self._typed, sums), gradients, at)

    def _typed(self, sums, gradient, at):
        return _cast(sums[at], gradient.dtype)

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

    def _rate(self, index):
        rate = self.inner.get_lr()
        if self.group_rates:
            rate = rate[index]
        return rate


class PlainUpdate(nn.Cell):
    """Let an optimizer move the weights by their gradients; nothing moves if loss or gradients are not finite.

    With ``clip_norm``, the gradients are first scaled so that the norm of all of them together is at most that. Weights
    whose index is in ``frozen`` do not move.
    """

    def __init__(self, inner: nn.Optimizer, clip_norm: float | None = None):
        super().__init__(auto_prefix=False)
        self.inner, self.weights = inner, inner.parameters
        self.clip_norm = 0.0 if clip_norm is None else float(clip_norm)
        self.frozen: tuple[int, ...] = ()
        self.across = None  # no rank hands another one directions
        self.summary = summary_of_all()

    def construct(self, loss, gradients):
        """(loss, whether the step was finite and done), for unscaled gradients in the optimizer's order."""
        finite = ops.isfinite(_cast(loss, ms.float32) + self.summary(gradients))
        if self.clip_norm > 0:
            norm = ops.sqrt(ops.addn(over(dot, gradients, gradients)))
            gradients = over(ops.partial(times, ops.minimum(self.clip_norm / (norm + 1e-12), 1.0)), gradients)
        if finite:
            frozen = over(self._copy, self.frozen) if self.frozen else ()
            loss = ops.depend(loss, self.inner(gradients))
            for place, i in enumerate(self.frozen):
                ops.assign(self.weights[i], ops.depend(frozen[place], loss))
        return loss, finite

    def _copy(self, i):
        return self.weights[i] * 1.0


def _parts_of(layer: int, places: Sequence[WeightPlace]) -> list[tuple[int, int]]:
    """(part, index of the weight) of each weight of one captured layer."""
    return [(place.part, at) for at, place in enumerate(places) if place.layer == layer]


def places_behind(count: int, frozen: Sequence[int]) -> tuple[int, ...]:
    """For each of ``count`` weights its place among first the frozen, then the other weights."""
    after = iter(range(len(frozen), count))
    return tuple(frozen.index(at) if at in frozen else next(after) for at in range(count))


def no_more_parameters(inner: nn.Optimizer, count: int) -> None:
    """Raise ValueError if ``inner`` has more than ``count`` Parameters now, as by Adafactor's ``add_param_group``."""
    if len(inner.parameters) != count:
        raise ValueError("inner was given more Parameters since THOR was made of it: give it all of them before")


def clipped(limit, gradient):
    """The gradient, scaled to a norm of at most ``limit``."""
    norm = ops.sqrt(dot(gradient, gradient))  # if infinite, 0 times infinity is NaN and the step not finite
    return times(ops.minimum(limit / (norm + 1e-12), 1.0), gradient)
