"""The compiled parts of a step: averaging fresh statistics into the estimates, and moving the weights."""

from __future__ import annotations

import mindspore as ms
from mindspore import ParameterTuple, nn, ops

from thor.compiled import over
from thor.distributed import Ranks, Sums
from thor.layers import Layer
from thor.precondition import from_matrix, precondition, precondition_with_bias, shape_of_result, to_matrix

_half_square = ops.L2Loss()
PER_LAYER = 6  # (blocks, beside, uses) of A and of G; likewise (inverse, s, t) of columns and of rows


class Estimate(nn.Cell):
    """F <- F + gain (fresh - F) for every statistic of ``layers``; answers with ``gain``.

    ``gain`` is one number a layer, 0 for a layer that has stopped. G is quadratic in the loss scale and its mean
    linear, so that powers of 1 / scale are taken out (``Layer.powers``).

    A graph of its own, without a branch: within the curvature step's it cost the compiler a third of its memory.
    """

    def __init__(self, layers: list[Layer]):
        super().__init__(auto_prefix=False)
        self.estimates = ParameterTuple([p for layer in layers for p in layer.estimates])
        self.powers = tuple(layer.powers for layer in layers)
        self.thin = tuple((layer.a.cut.rank > 0, layer.g.cut.rank > 0) for layer in layers)
        self.layers = tuple(range(len(layers)))

    def construct(self, gain, inverse_scale, fresh):
        by_power = (1.0, inverse_scale, inverse_scale * inverse_scale)
        for i in self.layers:
            j, rate, powers = i * PER_LAYER, gain[i], self.powers[i]
            self._average(j, rate, fresh[j] * by_power[powers[0]])
            if self.thin[i][0]:  # where blocks stand alone, what is beside them is always zero
                self._average(j + 1, rate, fresh[j + 1])
            self._average(j + 2, rate, fresh[j + 2])
            self._average(j + 3, rate, fresh[j + 3] * by_power[powers[1]])
            if self.thin[i][1]:
                self._average(j + 4, rate, fresh[j + 4] * by_power[powers[2]])
            self._average(j + 5, rate, fresh[j + 5])
        return gain

    def _average(self, index, rate, fresh):
        estimate = self.estimates[index]
        ops.assign(estimate, estimate + rate * (fresh - estimate))


class Update(nn.Cell):
    """Precondition the captured gradients, limit the step, and let the inner optimizer move the weights.

    With ``clip``, the captured directions are scaled by min(1, sqrt(clip / sum lr^2 <g, d>)): the step's size in the
    norm of the curvature, twice its KL divergence to second order, stays below ``clip`` (Ba, Grosse & Martens 2017).

    ``decays``, one for each of the inner optimizer's weights, are decoupled: w <- (1 - lr decay) w before the step.

    With ``clip_each``, each weight's gradient is first scaled to at most that norm. In a data-parallel job whose ranks
    hold some layers' inverses only, each preconditions those, and the directions are summed over a row of ranks, of
    which one has the layer's and the others zeros.

    One number, the sum of all <gradient, direction> (without ``clip`` of all |direction|^2 / 2, for an inverse makes no
    finite number of one that is not), tells whether everything is finite; if not, nothing moves.
    Reducing every gradient to it also keeps MindSpore's CPU runtime from running the backward products concurrently,
    where they slow each other down.

    Until the weights move, a layer's direction stays the one matrix of weight and bias that it was made as: where a
    graph ends, as before the branch on ``finite``, what was cut and reshaped is copied, by one kernel for each.
    """

    def __init__(
        self, inner: nn.Optimizer, layers: list[Layer], clip: float | None, decays: tuple[float, ...],
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
        self.layers, self.indices = tuple(range(len(layers))), tuple(range(len(inner.parameters)))
        made = {at: (i, 0) for i, at in enumerate(self.weight_at)}
        made |= {at: (i, 1) for i, at in enumerate(self.bias_at) if at >= 0}
        self.captured = tuple(sorted(made))
        self.others = tuple(i for i in self.indices if i not in made)
        self.made_by = tuple(made.get(i, (-1, 0))[0] for i in self.indices)  # layer that makes a weight's direction
        self.made_as = tuple(made.get(i, (-1, 0))[1] for i in self.indices)
        self.sum_at = tuple(self.captured.index(i) if i in made else -1 for i in self.indices)
        self.held = tuple(layer.held for layer in layers)
        self.across = self._sums_over_row(ranks)
        self.clip = 0.0 if clip is None else float(clip)
        self.clip_each = 0.0 if clip_each is None else float(clip_each)
        self.decays = decays
        self.decay_at = tuple(i for i in self.indices if self.decays[i])
        # matrices in one piece, unless weight and bias go their own ways: to other ranks, or at rates of their own
        # or to float16, where a direction may overflow that did not in float32
        halves = any(layer.weight.dtype == ms.float16 for layer in layers)
        self.by_weight = self.across is not None or halves or (self.clip > 0 and inner.is_group_lr)
        parts = [(i, 0) for i in self.layers]
        parts += [(i, 1) for i in self.layers if self.bias_at[i] >= 0 and (self.by_weight or i in apart)]
        self.part_of, self.part = tuple(i for i, _ in parts), tuple(part for _, part in parts)

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
        mine = over(ops.partial(self._gradients_of_layer, gradients), self.layers)
        given = over(self._matrices, mine, self.layers)
        made = over(self._preconditioned, mine, given, self.layers)
        if self.by_weight:
            given, made = mine, over(self._cut, mine, made, self.layers)
        if self.across is not None:
            sums = self.across(over(ops.partial(self._pick, gradients, made), self.captured), 1.0)
            made = over(ops.partial(self._from_row, sums), mine, self.layers)
        others = over(ops.partial(entry, gradients), self.others)
        products = over(ops.partial(self._product, given, made), self.part_of, self.part)
        total = loss.astype(ms.float32) + ops.addn(products + over(half_square, others))
        if self.clip > 0:
            made = over(ops.partial(over, ops.partial(times, self._limit(products))), made)
        finite = ops.isfinite(total)
        if finite:
            for i in self.decay_at:
                ops.assign(self.weights[i], self.weights[i] * (1.0 - self._rate(i) * self.decays[i]))
            cut = made
            if not self.by_weight:  # what is cut may not be cut again: MindSpore gives a direction no shape then
                cut = over(self._cut, mine, made, self.layers)
            loss = ops.depend(loss, self.inner(over(ops.partial(self._pick, gradients, cut), self.indices)))
        return loss, finite

    def _gradients_of_layer(self, gradients, i):
        """(of the weight,) or (of the weight, of the bias) of layer ``i``."""
        if self.bias_at[i] < 0:
            return (gradients[self.weight_at[i]],)
        return gradients[self.weight_at[i]], gradients[self.bias_at[i]]

    def _matrices(self, mine, i):
        """The gradients of layer ``i`` as its factors have them: (matrix,), or (matrix, column) with a bias apart."""
        if not self.held[i]:  # nor are the factors' inverses, whose shapes tell how
            return mine
        weight, bias = mine[0], None
        if len(mine) == 2:
            bias = mine[1]
        of_rows, of_columns, copies = self.caches[PER_LAYER * i + 3], self.caches[PER_LAYER * i], self.copies[i]
        rows, columns = of_rows.shape[1] * of_rows.shape[2], of_columns.shape[1] * of_columns.shape[2]
        if self.bias_inverse_at[i] < 0:
            return (to_matrix(weight, bias, copies, rows, columns, self.positions[i]).astype(ms.float32),)
        matrix = to_matrix(weight, None, copies, rows, columns, self.positions[i])
        return matrix.astype(ms.float32), to_matrix(bias, None, copies, rows, 1).astype(ms.float32)

    def _preconditioned(self, mine, matrices, i):
        """The directions of layer ``i``, as its matrices; zeros like its gradients where another rank makes them."""
        if not self.held[i]:
            return over(ops.zeros_like, mine)
        j, matrix = PER_LAYER * i, matrices[0]
        right = (self.caches[j], self.caches[j + 1], self.caches[j + 2])
        left = (self.caches[j + 3], self.caches[j + 4], self.caches[j + 5])
        shape = shape_of_result(mine[0], matrix.shape[1], matrix.shape[2], self.copies[i], self.positions[i])
        if self.bias_inverse_at[i] < 0:
            return (precondition(matrix, *right, *left, shape),)
        of_bias = self.bias_inverses[self.bias_inverse_at[i]]
        return precondition_with_bias(matrix, matrices[1], *right, of_bias, *left, shape)

    def _cut(self, mine, made, i):
        """The directions of layer ``i``, shaped and typed as its gradients."""
        if len(made) == 2:
            of_weight = from_matrix(made[0], mine[0], None, self.copies[i], self.positions[i])
            return of_weight + from_matrix(made[1], mine[1], None, self.copies[i])
        bias = None
        if len(mine) == 2:
            bias = mine[1]
        return from_matrix(made[0], mine[0], bias, self.copies[i], self.positions[i])

    def _pick(self, gradients, made, i):
        """The direction of weight ``i``: what its layer made of the gradient, or the gradient itself."""
        if self.made_by[i] < 0:
            return gradients[i]
        return made[self.made_by[i]][self.made_as[i]]

    def _from_row(self, sums, mine, i):
        """The directions of layer ``i``, from the rank of this row that has its inverses."""
        of_weight = sums[self.sum_at[self.weight_at[i]]].astype(mine[0].dtype)
        if len(mine) == 1:
            return (of_weight,)
        return of_weight, sums[self.sum_at[self.bias_at[i]]].astype(mine[1].dtype)

    def _product(self, given, made, i, part):
        if self.clip > 0:
            return dot(given[i][part], made[i][part])
        return half_square(made[i][part])  # to find what is not finite, one matrix is read and not two

    def _limit(self, products):
        """min(1, sqrt(clip / sum lr^2 <g, d>)) over what layers make."""
        curvature = ops.addn(over(self._share_of_curvature, products, self.part_of, self.part))
        return ops.minimum(ops.sqrt(self.clip / (ops.relu(curvature) + 1e-30)), 1.0)  # rounding may go below 0

    def _share_of_curvature(self, product, i, part):
        rate = self._rate(self.weight_at[i] if part == 0 else self.bias_at[i])
        return rate * rate * product

    def _rate(self, index):
        rate = self.inner.get_lr()
        if self.inner.is_group_lr:
            rate = rate[index]
        return rate


def entry(values, index):
    """One of a tuple."""
    return values[index]


def times(factor, value):
    """The value scaled, in its own type."""
    return value * factor.astype(value.dtype)


def scaling(scaled):
    """In a graph: a loss times the scale, 1 / scale, and a tuple times that; nothing of it where no loss is scaled."""

    def up(loss, scale):
        if scaled:
            return loss * scale[0]
        if loss.dtype == ms.float16 or loss.dtype == ms.bfloat16:
            return loss.astype(ms.float32)  # as a scaled one
        return loss

    def inverse(scale):
        if not scaled:
            return 1.0
        return 1.0 / scale[0]

    def down(values, factor):
        if not scaled:
            return values
        return over(ops.partial(times, factor), values)

    return up, inverse, down


def clipped(limit, gradient):
    """The gradient, scaled to at most that norm."""
    norm = ops.sqrt(dot(gradient, gradient))  # if infinite, 0 times infinity is found to be no number
    return times(ops.minimum(limit / (norm + 1e-12), 1.0), gradient)


def half_square(x):
    """Half the sum of squares, to find out whether all is finite: one kernel, which rounds to a few digits only."""
    return _half_square(x.astype(ms.float32))


def dot(x, y):
    """<x, y> over all entries, float32."""
    return ops.matmul(x.astype(ms.float32).reshape(-1), y.astype(ms.float32).reshape(-1))
