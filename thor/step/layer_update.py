"""What moves the weights by directions of captured layers: where each weight's move comes from, and how it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mindspore import Parameter, ParameterTuple, nn, ops

from first_order.cells import set_unregistered
from thor.curvature.form_groups import FormGroup, form_groups
from thor.curvature.layer import Layer
from thor.distributed.ranks import Ranks
from thor.distributed.reduce import Sums
from thor.runtime import device
from thor.runtime.graph_ops import dot, entry, nested_entry, over, times
from thor.step.finite_check import finiteness_summary
from thor.step.moving_averages import MovingAverages, mended

_cast = ops.Cast()


@dataclass(frozen=True)
class WeightPlace:
    """The source of one weight's move.

    Attributes:
        layer: index of the captured layer that the weight belongs to; the number of layers if the weight takes the
            plain gradient.
        part: 0 for a layer's weight, 1 for its bias; for a plain gradient, its index among the plain gradients.
    """

    layer: int
    part: int


def weight_places(weights: Sequence[Parameter], layers: Sequence[Layer]) -> tuple[WeightPlace, ...]:
    """The place of each weight, in the order of the inner optimizer."""
    place_of = {
        id(w): (i, part) for i, y in enumerate(layers) for part, w in enumerate((y.weight, y.bias)) if w is not None
    }
    plain = [id(w) for w in weights if id(w) not in place_of]
    place_of |= {weight: (len(layers), part) for part, weight in enumerate(plain)}
    return tuple(WeightPlace(*place_of[id(w)]) for w in weights)


class Moving(nn.Cell):
    """Lets an optimizer move its weights by gradients or directions.

    Weights whose index is in ``frozen`` do not move, whatever the optimizer does with a gradient of zero. ``decays``,
    one for each weight, are decoupled: w <- (1 - lr decay) w before the step. A step that is not finite mends the
    moving averages that the graph was given.
    """

    form_groups: tuple[FormGroup, ...] = ()
    averages: tuple[Parameter, ...] = ()
    copies: tuple[Parameter, ...] = ()

    def __init__(self, inner: nn.Optimizer, decays: Sequence[float]):
        super().__init__(auto_prefix=False)
        no_more_parameters(inner, len(decays))
        self.inner, self.weights, self.decays = inner, inner.parameters, tuple(decays)
        self.decayed = tuple(at for at, decay in enumerate(decays) if decay)
        self.group_rates = bool(inner.is_group_lr)
        self.frozen: tuple[int, ...] = ()
        self._loads: int | None = None
        self.across: Sums | None = None  # sums of directions over ranks

    def renew_groups(self, loads: int | None) -> None:
        """Let the groups of layers take over what layers have adopted, and everything if state was loaded meanwhile.

        ``loads`` counts the loads; None where that is unknown.
        """
        loaded, self._loads = loads is None or loads != self._loads, loads
        self.take_over(loaded)

    def take_over(self, loaded: bool) -> None:
        """Let the groups of layers take over what layers have adopted, or everything if it was ``loaded``."""
        for group in self.form_groups:
            group.renew(loaded)

    def mend_in_graph(self, moving: MovingAverages) -> None:
        """Let the graph mend these averages."""
        set_unregistered(self, averages=moving.averages, copies=moving.copies)

    def stay(self, loss):
        """Mend the moving averages; returns the loss."""
        for place, average in enumerate(self.averages):
            ops.assign(average, mended(average, self.copies[place]))
        return loss

    def move(self, loss, moves):
        """Move the weights; returns the loss, which then depends on that."""
        frozen = over(self.copy_of, self.frozen) if self.frozen else ()
        for i in self.decayed:
            ops.assign(self.weights[i], self.weights[i] * (1.0 - self.rate_of(i) * self.decays[i]))
        loss = ops.depend(loss, self.inner(moves))
        for place, i in enumerate(self.frozen):
            ops.assign(self.weights[i], ops.depend(frozen[place], loss))
        return loss

    def copy_of(self, i):
        """A copy of a weight."""
        return self.weights[i] * 1.0

    def rate_of(self, index):
        """The learning rate of a weight."""
        rate = self.inner.get_lr()
        if self.group_rates:
            rate = rate[index]
        return rate


class LayerUpdate(Moving):
    """Moves the weights of captured layers by directions, and the other weights.

    The layers are preconditioned in groups (thor/curvature/form_groups.py). ``by_layer`` is a tuple of a tuple for each
    layer, ``grouped`` has such a tuple for each group. With ``clip_each``, each weight's gradient is first scaled to at
    most that norm.

    If only some ranks of a data-parallel job hold a layer, its directions are summed over a row of ranks. One rank of
    the row adds a layer's direction, the others add zeros.
    """

    def __init__(
        self, inner: nn.Optimizer, layers: Sequence[Layer], decays: Sequence[float], clip_each: float | None,
        ranks: Ranks | None,
    ):  # fmt: skip
        super().__init__(inner, decays)
        self.summary = finiteness_summary()
        self.layers = tuple(range(len(layers)))
        groups = form_groups(layers, device.stacks)
        self.groups, self.group_members = tuple(range(len(groups))), tuple(group.indices for group in groups)
        #: (group, place in it) of each layer
        self.place_of = places_in(self.group_members)
        ends = np.cumsum([len(group.caches) for group in groups]).tolist()
        self.caches_at = tuple(
            tuple(range(end - len(group.caches), end)) for end, group in zip(ends, groups, strict=True)
        )
        # unregistered, because a checkpoint has the caches of each layer
        set_unregistered(self, form_groups=groups, caches=ParameterTuple([p for group in groups for p in group.caches]))
        self.cells_of_groups = nn.CellList([group.cell for group in groups])
        self.clip_each = 0.0 if clip_each is None else float(clip_each)
        places = weight_places(inner.parameters, layers)
        captured = tuple(at for at, place in enumerate(places) if place.layer < len(layers))
        self.others = tuple(at for at, place in enumerate(places) if place.layer == len(layers))
        #: (layer, part) of every weight's move, and of the captured weights' moves
        self.sources = tuple((place.layer, place.part) for place in places)
        self.captured_sources = tuple(self.sources[at] for at in captured)
        #: indices of a layer's weight, or of its weight and bias: among all weights, and among the captured ones
        self.weights_at = tuple(tuple(at for _, at in sorted(_parts_of(i, places))) for i in self.layers)
        self.sums_at = tuple(tuple(captured.index(at) for at in each) for each in self.weights_at)
        if ranks is not None and ranks.row is not None:
            shapes = [self.weights[at].shape for at in captured]
            self.across = Sums(shapes, [False] * len(shapes), ranks.sharing.fusion, ranks.row)

    def clipped_each(self, gradients):
        """The gradients, each of at most the norm ``clip_each``."""
        return over(ops.partial(clipped, self.clip_each), gradients) if self.clip_each > 0 else gradients

    def gradients_of(self, gradients, at):
        """A layer's gradients: (weight's,) or (weight's, bias's)."""
        return over(ops.partial(entry, gradients), at)

    def grouped(self, by_layer):
        """What there is for each layer, by groups."""
        return over(ops.partial(self._of_group, by_layer), self.group_members)

    def _of_group(self, by_layer, members):
        return over(ops.partial(entry, by_layer), members)

    def by_layer(self, grouped):
        """What there is for each layer of each group, in the order of the layers."""
        return over(ops.partial(nested_entry, grouped), self.place_of)

    def matrices_of(self, gradients, group):
        """The gradients of a group as matrices."""
        return self.cells_of_groups[group].matrices(gradients)

    def caches_of(self, at):
        """The caches of a group."""
        return over(ops.partial(entry, self.caches), at)

    def cut(self, directions, grouped):
        """The directions of all groups in the shapes of their weights, by layer."""
        return self.by_layer(over(self._cut_group, directions, grouped, self.groups))

    def _cut_group(self, directions, gradients, group):
        return self.cells_of_groups[group].cut(directions, gradients)

    def from_row(self, directions, by_layer, gradients):
        """The directions, cut, summed over this row of ranks, once the means of all gradients are there.

        A rank that holds none of a message's layers sends zeros, which would wait for nothing.
        """
        sums = self.across(over(ops.partial(nested_entry, directions), self.captured_sources), 1.0, gradients)
        return over(ops.partial(self.layer_from_row, sums), by_layer, self.sums_at)

    def layer_from_row(self, sums, gradients, at):
        """The directions of a layer, from the sums over this row of ranks."""
        return over(ops.partial(self.typed, sums), gradients, at)

    def typed(self, sums, gradient, at):
        """A sum in the type of a gradient."""
        return _cast(sums[at], gradient.dtype)


def _parts_of(layer: int, places: Sequence[WeightPlace]) -> list[tuple[int, int]]:
    """(part, index of the weight) of each weight of one captured layer."""
    return [(place.part, at) for at, place in enumerate(places) if place.layer == layer]


def places_in(groups: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """(group, place in the group) of 0, 1, 2 and so on, which are distributed over groups."""
    place = {i: (at, index) for at, members in enumerate(groups) for index, i in enumerate(members)}
    return tuple(place[i] for i in range(len(place)))


def places_behind(count: int, frozen: Sequence[int]) -> tuple[int, ...]:
    """For each of ``count`` weights its place among first the frozen, then the other weights."""
    after = iter(range(len(frozen), count))
    return tuple(frozen.index(at) if at in frozen else next(after) for at in range(count))


def no_more_parameters(inner: nn.Optimizer, count: int) -> None:
    """Raise ValueError if ``inner`` has more than ``count`` Parameters now, as by Adafactor's ``add_param_group``."""
    if len(inner.parameters) != count:
        raise ValueError("inner was given more Parameters since THOR was made of it: give it all of them before")


def clipped(limit, gradient):
    """The gradient, scaled to a norm of at most ``limit``; NaN if the norm is not finite, so that the step is not."""
    norm = ops.sqrt(dot(gradient, gradient))
    return times(ops.minimum(limit / (norm + 1e-12), 1.0) + (norm - norm), gradient)
