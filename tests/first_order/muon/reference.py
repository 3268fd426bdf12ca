"""Muon and AdamW in float64 NumPy, by singular values in place of an iteration; and PyTorch's own."""

import numpy as np
import torch

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def polynomial(values, steps, coefficients=COEFFICIENTS):
    """The odd polynomial of the iteration, applied ``steps`` times to each value."""
    a, b, c = coefficients
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return values


def singular(x, function):
    """Each matrix of a stack with function(singular values, Frobenius norm) as its singular values."""
    u, s, v = np.linalg.svd(x, full_matrices=False)
    norm = np.sqrt((s**2).sum(-1, keepdims=True))
    return np.einsum("...ik,...k,...kj->...ij", u, function(s, norm), v)


def muon(x, buffer, g, learning_rate, momentum=0.95, weight_decay=0.1, nesterov=True, ns_steps=5, ratio=None):
    """(x, buffer) after a step of a matrix; ``ratio`` is that of "original" by default."""
    buffer = momentum * buffer + (1 - momentum) * g
    direction = (1 - momentum) * g + momentum * buffer if nesterov else buffer
    matrix = direction.reshape(len(x), -1)
    if ratio is None:
        ratio = np.sqrt(max(1, matrix.shape[0] / matrix.shape[1]))
    step = singular(matrix, lambda s, norm: polynomial(s / np.maximum(norm, 1e-7), ns_steps))
    return (1 - learning_rate * weight_decay) * x - learning_rate * ratio * step.reshape(x.shape), buffer


def adamw(x, m, v, g, t, rate, beta1=0.9, beta2=0.95, eps=1e-10, decay=0.1):
    """(x, m, v) after step t of AdamW, as its paper has it."""
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    corrected = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return (1 - rate * decay) * x - rate * corrected, m, v


class Torch:
    """torch.optim.Muon over the matrices and torch.optim.AdamW over the other values."""

    def __init__(self, values, rate, adamw_rate, decay, adamw_decay, betas, adamw_eps, **options):
        self.parameters = [torch.nn.Parameter(torch.from_numpy(np.array(v))) for v in values]
        matrices = [p for p in self.parameters if p.ndim == 2]
        others = [p for p in self.parameters if p.ndim != 2]
        self.optimizers = [
            torch.optim.Muon(matrices, rate, weight_decay=decay, **options),
            torch.optim.AdamW(others, adamw_rate, betas=betas, eps=adamw_eps, weight_decay=adamw_decay),
        ]

    def step(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(np.array(gradient))
        for optimizer in self.optimizers:
            optimizer.step()

    @property
    def values(self):
        return [p.detach().numpy() for p in self.parameters]
