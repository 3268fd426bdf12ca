"""One rank of a data-parallel job: trains with each optimizer on its share of the batch, and saves the weights."""

import os
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from first_order import SOAP, Adafactor, Adam, Momentum, Muon

OPTIMIZERS = {
    "adam": lambda weights: Adam(weights, 0.01),
    "momentum": lambda weights: Momentum(weights, 0.01),
    "adafactor": lambda weights: Adafactor(weights, 0.01),
    "muon": lambda weights: Muon(weights, 0.01),
    "soap": lambda weights: SOAP(weights, 0.01, max_precond_dim=4),  # the longer sides have arbitrary eigenvectors
}
STEPS, BATCH = 5, 8


def network():
    """The same initial weights on every rank."""
    rng = np.random.default_rng(0)
    net = nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dense(6, 3))
    for weight in net.trainable_params():
        weight.set_data(Tensor(rng.standard_normal(weight.shape).astype(np.float32)))
    return net


def train(name, rank, ranks):
    """Weights after some steps, each rank seeing every ``ranks``-th example."""
    net, rng = network(), np.random.default_rng(1)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), OPTIMIZERS[name](net.trainable_params()))
    step.set_train()
    for _ in range(STEPS):
        x, y = rng.standard_normal((BATCH, 4)), rng.standard_normal((BATCH, 3))
        step(Tensor(x[rank::ranks].astype(np.float32)), Tensor(y[rank::ranks].astype(np.float32)))
    return {f"{name}.{i}": weight.asnumpy() for i, weight in enumerate(net.trainable_params())}


if __name__ == "__main__":
    from mindspore.communication import get_group_size, get_rank, init

    ms.set_device(os.environ.get("THOR_TEST_DEVICE", "CPU"))
    ms.set_context(mode=ms.GRAPH_MODE)
    init()
    ms.set_auto_parallel_context(
        parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=get_group_size()
    )
    found = {}
    for optimizer in OPTIMIZERS:
        found |= train(optimizer, get_rank(), get_group_size())
    np.savez(f"{sys.argv[1]}/rank{get_rank()}.npz", **found)
