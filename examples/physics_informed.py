"""A loss with second derivatives: a network solves Poisson's equation u'' = f on [0, 1], u(0) = u(1) = 0.

THOR and Adam train the same network at the same rate. Run it with  python examples/physics_informed.py
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import thor

FAST = 6 * np.pi


def solution(x: np.ndarray) -> np.ndarray:
    """The function u that the network is to find."""
    return np.sin(np.pi * x) + 0.5 * np.sin(FAST * x)


class Residual(nn.Cell):
    """Mean square of u'' - f at the points x, in units of f's fast wave, and of u at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.SequentialCell(nn.Dense(1, 32), nn.Tanh(), nn.Dense(32, 32), nn.Tanh(), nn.Dense(32, 1))
        self.slope, self.curve = ops.GradOperation()(self.u), ms.grad(self.sum_of_slopes)
        self.ends = Tensor([[0.0], [1.0]], ms.float32)

    def sum_of_slopes(self, x: Tensor) -> Tensor:
        return self.slope(x).sum()

    def construct(self, x: Tensor, f: Tensor) -> Tensor:
        error = (self.curve(x) - f) / (0.5 * FAST**2)
        return (error**2).mean() + (self.u(self.ends) ** 2).mean()


def error_of(name: str, rate: float, steps: int) -> float:
    """The relative error of u after training with "THOR" or "Adam"."""
    ms.set_seed(0)
    net = Residual()
    rates = nn.cosine_decay_lr(0.0, rate, steps, steps, 1)
    optimizer = thor.THOR(net, rates) if name == "THOR" else nn.Adam(net.trainable_params(), rates)
    step = thor.TrainStep(net, None, optimizer)
    x = np.linspace(0, 1, 64)[:, None]
    f = -(np.pi**2) * np.sin(np.pi * x) - 0.5 * FAST**2 * np.sin(FAST * x)
    for done in range(1, steps + 1):
        loss = step(Tensor(x, ms.float32), Tensor(f, ms.float32))
        if done % (steps // 3) == 0:
            print(f"{name} step {done:3d}  loss {float(loss):.5f}")
    u = net.u(Tensor(x, ms.float32)).asnumpy()
    return float(np.linalg.norm(u - solution(x)) / np.linalg.norm(solution(x)))


def main(rate: float = 0.01, steps: int = 300) -> tuple[float, float]:
    """The errors of Adam and of THOR."""
    return error_of("Adam", rate, steps), error_of("THOR", rate, steps)


if __name__ == "__main__":
    print("relative error of the solution: Adam {:.3f}, THOR {:.3f}".format(*main()))
