"""Data parallel training in two processes, each with its half of every batch.

Run it with  msrun --worker_num 2 --local_worker_num 2 --join True examples/two_processes.py
"""

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init

import thor


def points(step: int, rank: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """This rank's share of a step's examples."""
    x = np.random.default_rng(step).standard_normal((128, 8)).astype(np.float32)[rank::ranks]
    return x, np.argmax(x[:, :3] ** 2, 1).astype(np.int32)


def main(steps: int = 60) -> tuple[float, float]:
    """The first and the last loss of this process."""
    init()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    rank, ranks = get_rank(), get_group_size()
    ms.set_seed(0)  # the same initial weights everywhere
    net = nn.SequentialCell(nn.Dense(8, 32), nn.Tanh(), nn.Dense(32, 3))
    optimizer = thor.THOR(net, learning_rate=0.01)  # after the two calls above
    step = thor.TrainStep(net, nn.CrossEntropyLoss(), optimizer)
    losses = [float(step(*points(number, rank, ranks))) for number in range(steps)]
    print(f"rank {rank} of {ranks}: loss {losses[0]:.3f} at first, {losses[-1]:.3f} in the end")
    print(f"rank {rank}: bytes sent a step {step.messages}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
