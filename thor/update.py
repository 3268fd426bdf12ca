"""The compiled halves of a step: averaging fresh statistics into the estimates, and moving the weights."""

from __future__ import annotations

import mindspore as ms
from mindspore import ParameterTuple, nn, ops

from thor import factors
from thor.distributed import Ranks, Sums
from thor.layers import Layer
from thor.precondition import from_matrix, precondition, precondition_with_bias, to_matrix

PER_LAYER = 6  # (blocks, beside, uses) of A and of G; likewise (inverse, s, t) of columns and of rows


class Estimate(nn.Cell):
    """F <- F + gain (fresh - F) for every statistic of ``layers``; answers with the traces of the new factors.

    ``gain`` is one number a layer, 0 for a layer that has stopped. G is quadratic in the loss scale and its mean
    linear, so that powers of 1 / scale are taken out (``Layer.powers``).
    """

    def __init__(self, layers: list[Layer]):
        super().__init__(auto_prefix=False)
        self.estimates = ParameterTuple([p for layer in layers for p in layer.estimates])
        self.powers = tuple(layer.powers for layer in layers)
        self.bias_apart = tuple(layer.a.cut.bias_apart for layer in layers)
        self.count = len(layers)

    def construct(self, gain, inverse_scale, fresh):
        by_power = (1.0, inverse_scale, inverse_scale * inverse_scale)
        traces = ()
        for i in range(self.count):
            j = i * PER_LAYER
            rate = gain[i]
            powers = self.powers[i]
            a_blocks = self._average(j, rate, fresh[j] * by_power[powers[0]])
            # two branches: MindSpore drops a call that writes if it answers to a name that this layer does not use,
            # and a Parameter read after it was written would cost a TensorMove
            a_trace = factors.traces(a_blocks)
            if self.bias_apart[i]:
                beside = self._average(j + 1, rate, fresh[j + 1])
                uses = self._average(j + 2, rate, fresh[j + 2])
                a_trace = a_trace + factors.bias_trace(beside, uses)
            else:
                self._average(j + 1, rate, fresh[j + 1])
                self._average(j + 2, rate, fresh[j + 2])
            g_blocks = self._average(j + 3, rate, fresh[j + 3] * by_power[powers[1]])
            self._average(j + 4, rate, fresh[j + 4] * by_power[powers[2]])
            self._average(j + 5, rate, fresh[j + 5])
            traces += (a_trace, factors.traces(g_blocks))
        return ops.cat(traces)

    def _average(self, index, rate, fresh):
        estimate = self.estimates[index]
        value = estimate + rate * (fresh - estimate)
        ops.assign(estimate, value)
        return value


class Update(nn.Cell):
    """Precondition the captured gradients, limit the step, and let the inner optimizer move the weights.

    With ``clip``, the captured directions are scaled by min(1, sqrt(clip / sum lr^2 <g, d>)): the step's size in the
    norm of the curvature, twice its KL divergence to second order, stays below ``clip`` (Ba, Grosse & Martens 2017).

    With ``clip_each``, each weight's gradient is first scaled to at most that norm. In a data-parallel job whose ranks
    hold some layers' inverses only, each preconditions those, and the directions are summed over a row of ranks, of
    which one has the layer's and the others zeros.

    One number, the sum of all <gradient, direction>, tells whether everything is finite; if not, nothing moves.
    Reducing every gradient to it also keeps MindSpore's CPU runtime from running the backward products concurrently,
    where they slow each other down.
    """

    def __init__(
        self, inner: nn.Optimizer, layers: list[Layer], clip: float | None, decay: float,
        clip_each: float | None = None, ranks: Ranks | None = None,
    ):  # fmt: skip
        super().__init__(auto_prefix=False)
        self.inner = inner
        self.weights = inner.parameters
        self.caches = ParameterTuple([p for y in layers for f in (y.columns, y.rows) for p in (f.inverse, f.s, f.t)])
        apart = [i for i, layer in enumerate(layers) if layer.a.bias_inverse is not None]
        self.bias_inverses = ParameterTuple([layers[i].a.bias_inverse for i in apart])
        self.bias_inverse_at = tuple(apart.index(i) if i in apart else -1 for i in range(len(layers)))
        position = {id(weight): index for index, weight in enumerate(inner.parameters)}
        self.weight_at = tuple(position[id(layer.weight)] for layer in layers)
        self.bias_at = tuple(-1 if layer.bias is None else position[id(layer.bias)] for layer in layers)
        self.copies = tuple(layer.copies for layer in layers)
        self.positions = tuple(layer.positions for layer in layers)
        self.count, self.size = len(layers), len(inner.parameters)
        captured = dict.fromkeys(self.weight_at) | dict.fromkeys(b for b in self.bias_at if b >= 0)
        self.captured = tuple(captured)
        # where to find each weight's direction in (gradients..., directions of captured weights...)
        self.pick = tuple(self.size + self.captured.index(i) if i in captured else i for i in range(self.size))
        self.order = self._order_of_directions()
        self.held = tuple(layer.held for layer in layers)
        self.across = self._sums_over_row(ranks)
        self.clip = 0.0 if clip is None else float(clip)
        self.clip_each = 0.0 if clip_each is None else float(clip_each)
        self.decay = float(decay)
        self.decay_at = tuple(i for i in range(self.size) if inner.decay_flags[i]) if decay else ()

    def _sums_over_row(self, ranks: Ranks | None) -> Sums | None:
        """How ranks hand each other directions; None where each computes all of them."""
        if ranks is None or ranks.row is None:
            return None
        made = [at for pair in zip(self.weight_at, self.bias_at, strict=True) for at in pair if at >= 0]
        shapes = [self.weights[at].shape for at in made]
        return Sums(shapes, [False] * len(shapes), ranks.sharing.fusion, ranks.row)

    def _order_of_directions(self) -> tuple[int, ...]:
        """Position of each captured weight in the list (weight, bias of layer 0, weight of layer 1, ...)."""
        made: list[int] = []
        for weight, bias in zip(self.weight_at, self.bias_at, strict=True):
            made += [weight] if bias < 0 else [weight, bias]
        return tuple(made.index(i) for i in self.captured)

    def construct(self, loss, gradients):
        """(loss, whether the step was finite and done) for unscaled gradients in the inner optimizer's order."""
        if self.clip_each > 0:
            gradients = self._clipped_each(gradients)
        made = self._directions(gradients)
        if self.across is not None:
            made = self._from_row(made)
        pool = gradients
        for index in self.order:
            pool += (made[index],)
        directions = ()
        for index in self.pick:
            directions += (pool[index],)
        products = ()
        total = loss.astype(ms.float32)
        for i in range(self.size):
            products += (dot(gradients[i], directions[i]),)
            total = total + products[i]
        if self.clip > 0:
            directions = self._limited(directions, products)
        finite = ops.isfinite(total)
        if finite:
            for i in self.decay_at:
                ops.assign(self.weights[i], self.weights[i] * (1.0 - self._rate(i) * self.decay))
            loss = ops.depend(loss, self.inner(directions))
        return loss, finite

    def _directions(self, gradients):
        made = ()
        for i in range(self.count):
            weight = gradients[self.weight_at[i]]
            bias = None
            if self.bias_at[i] >= 0:
                bias = gradients[self.bias_at[i]]
            if self.held[i]:
                made += self._direction(i, weight, bias)
            else:
                made += (ops.zeros_like(weight),)
                if self.bias_at[i] >= 0:
                    made += (ops.zeros_like(bias),)
        return made

    def _direction(self, i, weight, bias):
        j = i * PER_LAYER
        of_rows, of_columns = self.caches[j + 3], self.caches[j]
        rows = of_rows.shape[1] * of_rows.shape[2]
        columns = of_columns.shape[1] * of_columns.shape[2]
        right = (self.caches[j], self.caches[j + 1], self.caches[j + 2])
        left = (of_rows, self.caches[j + 4], self.caches[j + 5])
        copies, positions, apart = self.copies[i], self.positions[i], self.bias_inverse_at[i]
        if apart < 0:
            matrix = to_matrix(weight, bias, copies, rows, columns, positions).astype(ms.float32)
            return from_matrix(precondition(matrix, *right, *left), weight, bias, copies, positions)
        matrix = to_matrix(weight, None, copies, rows, columns, positions).astype(ms.float32)
        column = to_matrix(bias, None, copies, rows, 1).astype(ms.float32)
        matrix, column = precondition_with_bias(matrix, column, *right, self.bias_inverses[apart], *left)
        return from_matrix(matrix, weight, None, copies, positions) + from_matrix(column, bias, None, copies)

    def _from_row(self, made):
        sums = self.across(made, 1.0)
        typed = ()
        for i in range(len(made)):
            typed += (sums[i].astype(made[i].dtype),)
        return typed

    def _clipped_each(self, gradients):
        clipped = ()
        for i in range(self.size):
            norm = ops.sqrt(dot(gradients[i], gradients[i]))  # if infinite, 0 times infinity is found to be no number
            factor = ops.minimum(self.clip_each / (norm + 1e-12), 1.0)
            clipped += (gradients[i] * factor.astype(gradients[i].dtype),)
        return clipped

    def _limited(self, directions, products):
        curvature = ops.zeros((), ms.float32)
        for i in range(self.size):
            if self.pick[i] >= self.size:
                rate = self._rate(i)
                curvature = curvature + rate * rate * products[i]
        factor = ops.minimum(ops.sqrt(self.clip / (ops.relu(curvature) + 1e-30)), 1.0)  # rounding may go below 0
        limited = ()
        for i in range(self.size):
            direction = directions[i]
            if self.pick[i] >= self.size:
                direction = direction * factor.astype(direction.dtype)
            limited += (direction,)
        return limited

    def _rate(self, index):
        rate = self.inner.get_lr()
        if self.inner.is_group_lr:
            rate = rate[index]
        return rate


def dot(x, y):
    """<x, y> over all entries, float32."""
    return ops.matmul(x.astype(ms.float32).reshape(-1), y.astype(ms.float32).reshape(-1))
