"""Gradients of several micro-batches, added up by hand.

`thor.TrainStep(..., accumulate=4)` does this by itself, averages the factors too, and weighs micro-batches by their
examples. By hand, the factors are those of the last micro-batch.

Run it with  python examples/accumulation_by_hand.py
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import thor


def main(updates: int = 40, parts: int = 4) -> tuple[float, float]:
    """The first and the last mean loss of an update."""
    ms.set_seed(0)
    rng = np.random.default_rng(0)
    net = nn.SequentialCell(nn.Dense(8, 32), nn.Tanh(), nn.Dense(32, 3))
    optimizer = thor.THOR(net, 0.01)

    def forward(x, labels):
        return ops.cross_entropy(net(x), labels)

    grad_fn = thor.value_and_grad(forward, optimizer)
    means = []
    for update in range(updates):
        sums, losses = None, []
        for _ in range(parts):
            x = rng.standard_normal((64, 8)).astype(np.float32)
            labels = np.argmax(x[:, :3] ** 2, 1).astype(np.int32)
            loss, gradients = grad_fn(Tensor(x), Tensor(labels))
            sums = gradients if sums is None else tuple(a + b for a, b in zip(sums, gradients, strict=True))
            losses.append(float(loss))
        optimizer(tuple(each / parts for each in sums))
        means.append(sum(losses) / parts)
        if update % 10 == 0:
            print(f"update {update:3d}  loss {means[-1]:.3f}")
    return means[0], means[-1]


if __name__ == "__main__":
    print("loss: {:.3f} at first, {:.3f} in the end".format(*main()))
