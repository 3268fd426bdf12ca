"""Several losses and one optimizer: both are seen on their own, and the gradients are clipped together.

Run it with  python examples/several_losses.py
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import thor


def main(steps: int = 100) -> tuple[float, float]:
    """The first and the last sum of the losses."""
    ms.set_seed(0)
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((128, 8)).astype(np.float32))
    y = ops.sin(x[:, :2] * 2.0)
    encoder, decoder = nn.Dense(8, 16, activation="tanh"), nn.Dense(16, 8)
    head = nn.Dense(16, 2)
    net = nn.CellList([encoder, decoder, head])
    optimizer = thor.THOR(net, 0.1, 0.03, interval=10, clip=1e-2)

    def losses(x, y):
        hidden = encoder(x)
        fit = ((head(hidden) - y) ** 2).mean()
        reconstruction = ((decoder(hidden) - x) ** 2).mean()
        return fit + 0.1 * reconstruction, fit, reconstruction

    @ms.jit
    def clipped(*gradients):
        return ops.clip_by_global_norm(gradients, 1.0)

    grad_fn = thor.value_and_grad(losses, optimizer, has_aux=True)
    found = []
    for step in range(steps):
        (loss, (fit, reconstruction)), gradients = grad_fn(x, y)
        optimizer(clipped(*gradients))
        found.append(float(loss))
        if step % 20 == 0:
            print(f"step {step:3d}  fit {float(fit):.4f}  reconstruction {float(reconstruction):.4f}")
    return found[0], found[-1]


if __name__ == "__main__":
    print("sum of the losses: {:.4f} at first, {:.4f} in the end".format(*main()))
