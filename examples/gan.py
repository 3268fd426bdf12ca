"""A GAN: one wrapper, an optimizer for each network, a loop of one's own. Run it with `python examples/gan.py`."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import thor


class Gan(nn.Cell):
    """Makes points of a plane from noise, and judges points."""

    def __init__(self):
        super().__init__()
        self.generator = nn.SequentialCell(nn.Dense(4, 32), nn.Tanh(), nn.Dense(32, 2))
        self.critic = nn.SequentialCell(nn.Dense(2, 32), nn.Tanh(), nn.Dense(32, 1))

    def construct(self, noise):
        return self.critic(self.generator(noise))


def main(steps: int = 300) -> tuple[float, float]:
    """Mean distance of generated points from the unit circle, before and after training."""
    ms.set_seed(0)
    rng, gan = np.random.default_rng(0), Gan()
    settings = {"momentum": 0.0, "interval": 10, "clip": 0.1}
    makes = thor.THOR(gan, 0.1, 0.03, params=gan.generator.trainable_params(), **settings)
    judges = thor.THOR(gan, 0.1, 0.03, params=gan.critic.trainable_params(), **settings)

    def judged(real, noise):
        return ops.softplus(-gan.critic(real)).mean() + ops.softplus(gan(noise)).mean()

    def made(noise):
        return ops.softplus(-gan(noise)).mean()

    judge, make = thor.value_and_grad(judged, judges), thor.value_and_grad(made, makes)

    def noise(count=128):
        return Tensor(rng.standard_normal((count, 4)).astype(np.float32))

    def distance():
        points = gan.generator(noise(1000)).asnumpy()
        return float(np.abs(np.hypot(points[:, 0], points[:, 1]) - 1).mean())

    before = distance()
    for step in range(steps):
        angle = rng.uniform(0, 2 * np.pi, 128)
        real = Tensor(np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32))
        loss, gradients = judge(real, noise())
        judges(gradients)
        makes(make(noise())[1])
        if step % 50 == 0:
            print(f"step {step:3d}  critic's loss {float(loss):.3f}  distance from the circle {distance():.3f}")
    return before, distance()


if __name__ == "__main__":
    print("distance from the circle: {:.3f} before, {:.3f} after".format(*main()))
