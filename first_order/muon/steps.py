"""The compiled steps of Muon's matrices and of AdamW's weights."""

from __future__ import annotations

import mindspore as ms
from mindspore import ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F

from first_order.adam import adam_step, weight_of_average
from first_order.muon.newton_schulz import matrix_shape, orthogonalized
from first_order.tensors import scalar, working_type


def averaged(buffer, grad, momentum, nesterov):
    """(buffer, direction) for a gradient; all have the working type."""
    buffer = momentum * buffer + (1 - momentum) * grad
    direction = buffer
    if nesterov:
        direction = (1 - momentum) * grad + momentum * buffer
    return buffer, direction


class MatrixStep(nn.Cell):
    """Muon's step of some equal matrices, which go through each operation together.

    Args:
        members: numbers of the weights among the optimizer's parameters.
        weights: the weights.
        buffers: their momentum buffers.
        kind: number of the learning rate and decay.
        decays: whether they decay.
        nesterov: whether to look ahead.
        iteration: (coefficients, steps, eps, type) of the Newton-Schulz iteration.
        ratio: what the learning rate is multiplied by.
    """

    def __init__(self, members, weights, buffers, kind, decays, nesterov, iteration, ratio):
        super().__init__(auto_prefix=False)
        self.members, self.kind, self.decays, self.nesterov = members, kind, decays, nesterov
        self.weights, self.buffers = ParameterTuple(weights), ParameterTuple(buffers)
        self.coefficients, self.steps, self.eps, self.dtype = iteration
        self.working, self.stacked = working_type(weights[0].dtype), len(members) > 1
        self.matrix = ((len(members),) if self.stacked else ()) + matrix_shape(weights[0].shape)
        self.ratio = ratio
        self.map = ops.composite.Map()

    def construct(self, gradients, momentum, rate, keep):
        """Move the weights; ``momentum``, ``rate`` and ``keep`` are one number each."""
        x, buffer, g = self.weights[0], self.buffers[0], gradients[self.members[0]]
        if self.stacked:
            x, buffer = ops.stack(self.weights), ops.stack(self.buffers)
            g = ops.stack(self.map(F.partial(_at, gradients), self.members))
        x, g, momentum = x.astype(self.working), g.astype(self.working), momentum.astype(self.working)
        buffer, direction = averaged(buffer, g, momentum, self.nesterov)
        step = orthogonalized(direction.reshape(self.matrix), self.coefficients, self.steps, self.eps, self.dtype)
        if self.decays:
            x = x * keep.astype(self.working)
        x = x - rate.astype(self.working) * scalar(self.ratio, self.working) * step.reshape(g.shape)
        if self.stacked:
            self.map(_write, self.buffers, ops.unstack(buffer))
            return self.map(_write, self.weights, ops.unstack(x))
        _write(self.buffers[0], buffer)
        return _write(self.weights[0], x)


class AdamWStep(nn.Cell):
    """AdamW's step of some weights of one learning rate and decay.

    Args:
        members: numbers of the weights among the optimizer's parameters.
        weights: the weights.
        m: running averages of their gradients.
        v: running averages of the squares.
        kind: number of the learning rate and decay.
        decays: whether they decay.
    """

    def __init__(self, members, weights, m, v, kind, decays):
        super().__init__(auto_prefix=False)
        self.members, self.kind, self.decays = members, kind, decays
        self.weights, self.m, self.v = ParameterTuple(weights), ParameterTuple(m), ParameterTuple(v)
        self.fused = ops.Adam()
        self.map = ops.composite.Map()

    def construct(self, gradients, count, betas, rate, keep):
        """Move the weights; ``count`` is the number of this step, counted from 1."""
        beta1, beta2, epsilon = betas
        t = count.astype(rate.dtype)
        root = ops.sqrt(weight_of_average(beta2, t))
        # m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) is m / (sqrt(v) + eps root) times root / (1 - b1^t)
        shared = (rate * (root / weight_of_average(beta1, t)), keep, epsilon * root, beta1, beta2)
        chosen = self.map(F.partial(_at, gradients), self.members)
        return self.map(F.partial(self._move, shared), self.weights, self.m, self.v, chosen)

    def _move(self, shared, param, m, v, gradient):
        rate, keep, epsilon, beta1, beta2 = shared
        dtype = working_type(param.dtype)
        rate, epsilon = rate.astype(dtype), epsilon.astype(dtype)
        beta1, beta2 = beta1.astype(dtype), beta2.astype(dtype)
        if param.dtype == ms.float32:  # MindSpore's fused kernel; powers of 0, for the rate has the bias correction
            if self.decays:
                ops.assign(param, param * keep.astype(dtype))
            none = Tensor(0, ms.float32)
            return self.fused(
                param, m, v, none, none, rate, beta1, beta2, epsilon, gradient.astype(dtype)
            )  # fmt: skip
        x = param.astype(dtype)
        if self.decays:
            x = x * keep.astype(dtype)
        new = adam_step(x, m, v, gradient, rate, beta1, beta2, epsilon, False)
        _write(m, new[1])
        _write(v, new[2])
        return _write(param, new[0])


def _at(values, index):
    return values[index]


def _write(parameter, value):
    return ops.assign(parameter, value.astype(parameter.dtype))
