"""Distillation: a small network learns from a teacher inside its loss, which then takes over the student's weights.

Run it with  python examples/distillation.py
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import thor


def network() -> nn.Cell:
    """A small classifier."""
    return nn.SequentialCell(nn.Dense(8, 32), nn.Tanh(), nn.Dense(32, 3))


class Distance(nn.Cell):
    """Cross entropy with the labels, and with what the teacher says."""

    def __init__(self, teacher: nn.Cell):
        super().__init__()
        self.teacher = teacher
        self.weight = ms.Parameter(Tensor(0.5, ms.float32), name="weight", requires_grad=False)

    def construct(self, scores, labels, x):
        taught = ops.stop_gradient(ops.softmax(self.teacher(x)))
        return (1 - self.weight) * ops.cross_entropy(scores, labels) + self.weight * ops.cross_entropy(scores, taught)


def main(rounds: int = 3, steps: int = 60) -> list[float]:
    """Losses at the end of each round; after a round the teacher is the student as it is then."""
    ms.set_seed(0)
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((256, 8)).astype(np.float32))
    labels = Tensor(np.argmax(x.asnumpy()[:, :3] ** 2, 1).astype(np.int32))
    student, loss_fn = network(), Distance(network())
    step = thor.TrainStep(student, loss_fn, thor.THOR(student, 0.005))
    found = []
    for number in range(rounds):
        for _ in range(steps):
            loss = step(x, labels, x)  # the last inputs, as many as the loss has labels, are the loss's
        found.append(float(loss))
        print(f"round {number}  loss {found[-1]:.3f}  functions compiled {step.graphs}")
        # new values are used from the next step on, and nothing is compiled for them
        for mine, theirs in zip(loss_fn.teacher.get_parameters(), student.get_parameters(), strict=True):
            mine.set_data(theirs.value())
        loss_fn.weight.set_data(Tensor(0.2, ms.float32))
    return found


if __name__ == "__main__":
    main()
