"""PyTorch's Adafactor, to compare ours with."""

import numpy as np
import torch

from tests.first_order.arrays import assert_close


class Torch:
    """torch.optim.Adafactor over given values."""

    def __init__(self, values, groups=None, **options):
        self.parameters = [torch.nn.Parameter(torch.from_numpy(np.array(v))) for v in values]
        given = groups(self.parameters) if groups else self.parameters
        self.optimizer = torch.optim.Adafactor(given, **options)

    def step(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(np.array(gradient))
        self.optimizer.step()

    @property
    def values(self):
        return [p.detach().numpy() for p in self.parameters]


def assert_same(ours, theirs, dtype):
    for mine, other in zip(ours, theirs.values, strict=True):
        assert_close(mine, other, dtype)
