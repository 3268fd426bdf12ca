"""The compiled end of a step in eigenbases: gradients are turned, Adam makes a step there, and it is turned back."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from first_order.adam import bias_correction, moments_after
from first_order.cells import set_unregistered
from first_order.tensors import scalar
from thor.curvature.basis_layer import BasisLayer
from thor.curvature.form_groups import alike
from thor.distributed.ranks import Ranks
from thor.runtime import device
from thor.runtime.graph_ops import entry, nested_entry, over, shared
from thor.runtime.parameters import PREFIX
from thor.runtime.stack import Stack
from thor.step.adam_moments import AdamMoments, largest_step
from thor.step.finite_check import summary_of_all
from thor.step.layer_update import LayerUpdate, places_in

_cast = ops.Cast()


class EigenUpdate(LayerUpdate):
    """Adam in the eigenbasis of every captured layer's factors, and plain Adam for all other weights.

    With R = Q_G^T dW Q_A, a layer's direction is Q_G U Q_A^T, where U is Adam's step from the running averages of R and
    of R^2, and the learning rate of a layer in a basis is ``rate_factor`` times the given one. A layer whose basis has
    not been computed yet takes Adam's plain step. Nothing changes if the loss or a gradient is not finite.

    ``refreshes`` counts the bases that each layer has had.
    """

    def __init__(
        self, inner: nn.Optimizer, layers: Sequence[BasisLayer], moments: AdamMoments, refreshes: Parameter,
        beta1: float, beta2: float, epsilon: float, rate_factor: float, decays: tuple[float, ...],
        clip_each: float | None = None, ranks: Ranks | None = None,
    ):  # fmt: skip
        super().__init__(inner, layers, decays, clip_each, ranks)
        #: the moments of the layers, then those of the other weights
        self.first = ParameterTuple([layer.first for layer in layers] + moments.first)
        self.second = ParameterTuple([layer.second for layer in layers] + moments.second)
        self.steps = moments.steps
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        first_of = [layers[members[0]] for members in self.group_members]  # a group has layers of one kind
        self.held = tuple(layer.held for layer in first_of)
        limit = largest_step(beta1, beta2)
        highest = tuple(rate_factor if layer.caches else 1.0 for layer in first_of)
        self.limits, self.limited = tuple(limit * factor for factor in highest), limit < float("inf")
        factors = [
            Parameter(Tensor(np.ones(factor_shape([layers[i] for i in members]), np.float32)),
                      name=f"{PREFIX}rate_factor.{members[0]}", requires_grad=False)
            for members in self.group_members
        ]  # fmt: skip
        # unregistered, because a checkpoint has the counts of refreshes
        set_unregistered(
            self, basis_layers=tuple(layers), refreshes=refreshes, highest=highest, factors=ParameterTuple(factors)
        )
        self._has_basis = np.zeros(len(layers), bool)
        #: the other weights by shape, whose moments are stacked as those of a group of layers are
        self.others_by_shape = alike([
            tuple(each.shape) if each.shape and device.stacks(each.size) else k  # a number has no axis
            for k, each in enumerate(moments.first)
        ])  # fmt: skip
        self.other_units = tuple(range(len(self.groups), len(self.groups) + len(self.others_by_shape)))
        self.other_place = places_in(self.others_by_shape)
        #: the indices of the moments of each unit: a group of layers, or other weights of one shape
        self.members = self.group_members + tuple(tuple(len(layers) + k for k in unit) for unit in self.others_by_shape)
        self.stacks = nn.CellList([shared(Stack, len(members)) for members in self.members])
        self.summary_of_all = summary_of_all()

    def take_over(self, loaded: bool) -> None:
        """As for any update; layers that have their first basis now get their learning rate."""
        super().take_over(loaded)
        has_basis = self.refreshes.asnumpy() > 0
        if np.array_equal(has_basis, self._has_basis):
            return
        self._has_basis = has_basis
        for members, highest, factor in zip(self.group_members, self.highest, self.factors, strict=True):
            values = np.where(has_basis[list(members)], highest, 1.0)
            stacked = np.repeat(values, self.basis_layers[members[0]].copies).reshape(-1, 1, 1)
            value = np.broadcast_to(stacked, factor.shape) if factor.ndim else values[0]
            ops.assign(factor, Tensor(np.array(value, np.float32)))

    def construct(self, loss, gradients):
        """(loss, whether the step was finite and done), for unscaled gradients in the inner optimizer's order."""
        gradients = self.clipped_each(gradients)
        by_layer = over(ops.partial(self.gradients_of, gradients), self.weights_at)
        others = over(ops.partial(entry, gradients), self.others)
        finite = ops.isfinite(_cast(loss, ms.float32) + self.summary_of_all(gradients))
        directions = ()
        if self.across is not None:  # no rank may wait for another one within a branch
            found, directions, plain = self._steps(by_layer, others)
            directions = self.from_row(directions, by_layer, gradients)
        if finite:
            if self.across is None:
                found, directions, plain = self._steps(by_layer, others)
            over(self._store, found + plain, self.groups + self.other_units)
            ops.assign(self.steps, self.steps + 1)
            moves = directions + (self._steps_of_others(plain) if self.other_units else (),)
            loss = self.move(loss, over(ops.partial(nested_entry, moves), self.sources))
        else:
            loss = self.stay(loss)
        return loss, finite

    def _steps(self, by_layer, others):
        """What Adam makes of each group of layers, the directions of each layer, what Adam makes of other weights.

        Adam makes stacks (first moment, second moment, step); those of layers are in their bases.
        """
        beta1, beta2 = scalar(self.beta1, ms.float32), scalar(self.beta2, ms.float32)
        correction = bias_correction(self.steps + 1, beta1, beta2, ms.float32)
        grouped = self.grouped(by_layer)
        turned = over(self._turned, grouped, self.caches_at, self.groups)
        found = over(ops.partial(self._step_in_basis, correction), turned, self.groups)
        directions = self.cut(over(self._turned_back, found, self.caches_at, self.groups), grouped)
        plain = ()
        if self.other_units:
            stacks = over(ops.partial(self._others_of_unit, others), self.others_by_shape, self.other_units)
            plain = over(ops.partial(self._step, correction), stacks, self.other_units)
        return found, directions, plain

    def _turned(self, gradients, at, group):
        """The gradients of a group's layers in their bases."""
        cell = self.cells_of_groups[group]
        return cell(cell.matrices(gradients)[0], self.caches_of(at))

    def _turned_back(self, found, at, group):
        """The steps of a group's layers, turned back, as matrices."""
        return (self.cells_of_groups[group].back(found[2], self.caches_of(at)),)

    def _others_of_unit(self, others, at, unit):
        return self.stacks[unit].joined(over(ops.partial(_entry_as_float32, others), at))

    def _step_in_basis(self, correction, turned, group):
        if not self.held[group]:
            i = self.members[group][0]
            return self.first[i], self.second[i], ops.zeros_like(turned)
        first, second, step = self._step(correction * self.factors[group], turned, group)
        if self.limited:
            step = ops.clamp(step, -self.limits[group], self.limits[group])
        return first, second, step

    def _step(self, correction, gradient, unit):
        """Adam's moments after a step, and the step: correction * m / (sqrt(v) + epsilon)."""
        stack, members = self.stacks[unit], self.members[unit]
        first = stack.joined(over(ops.partial(entry, self.first), members))
        second = stack.joined(over(ops.partial(entry, self.second), members))
        first, second = moments_after(first, second, gradient, self.beta1, self.beta2)
        return first, second, correction * (first / (ops.sqrt(second) + self.epsilon))

    def _steps_of_others(self, plain):
        """The step of each other weight."""
        by_unit = over(self._apart, plain, self.other_units)
        return over(ops.partial(nested_entry, by_unit), self.other_place)

    def _apart(self, found, unit):
        return self.stacks[unit].apart(found[2])

    def _store(self, found, unit):
        stack, members = self.stacks[unit], self.members[unit]
        over(self._store_first, stack.apart(found[0]), members)
        return over(self._store_second, stack.apart(found[1]), members)

    def _store_first(self, value, i):
        return ops.assign(self.first[i], value)

    def _store_second(self, value, i):
        return ops.assign(self.second[i], value)


def factor_shape(layers: Sequence[BasisLayer]) -> tuple[int, ...]:
    """The shape of the factors on the learning rate of a group: a number for one layer, else as the stack of moments.

    A CPU takes long to broadcast; an accelerator broadcasts a number for each layer.
    """
    if len(layers) == 1:
        return ()
    stacked = len(layers) * layers[0].copies
    return (stacked, 1, 1) if device.spares_kernels() else (stacked, *layers[0].first.shape[1:])


def _entry_as_float32(values, index):
    return _cast(values[index], ms.float32)
