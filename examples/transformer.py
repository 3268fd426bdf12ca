"""A transformer that continues a sequence: each number is the sum of the two before it, modulo ten.

Run it with  python examples/transformer.py
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import thor

LENGTH, WIDTH, DIGITS = 12, 32, 10


class Model(nn.Cell):
    """Tokens [B, LENGTH] to scores of each next token."""

    def __init__(self) -> None:
        super().__init__()
        self.digits, self.places = nn.Embedding(DIGITS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.scores = nn.Dense(WIDTH, DIGITS)
        self.place = Tensor(np.arange(LENGTH)[None], ms.int32)
        self.ahead = Tensor(np.triu(np.ones((LENGTH, LENGTH)), 1).astype(bool))  # what a token must not see

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.digits(tokens) + self.places(self.place.broadcast_to(tokens.shape))
        return self.scores(self.layer(x, src_mask=self.ahead)).reshape(-1, DIGITS)


def sequences(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences and, for each of their tokens, the next one."""
    tokens = np.random.default_rng(seed).integers(0, DIGITS, (count, LENGTH + 1)).astype(np.int32)
    for place in range(2, LENGTH + 1):
        tokens[:, place] = (tokens[:, place - 1] + tokens[:, place - 2]) % DIGITS
    return tokens[:, :-1], tokens[:, 1:].reshape(-1)


def main(steps: int = 300) -> float:
    """The accuracy of the last token of sequences that were not trained on."""
    ms.set_seed(0)
    net = Model()
    rates = [3e-3 * min(1.0, (step + 1) / 20) * (1 - step / steps) for step in range(steps)]
    optimizer = thor.THOR(net, learning_rate=rates)
    step = thor.TrainStep(net, nn.CrossEntropyLoss(), optimizer)
    for number in range(steps):
        loss = step(*sequences(64, number))
        if number % 50 == 0:
            print(f"step {number:3d}  loss {float(loss):.3f}")
    print([layer.name for layer in optimizer.layers])
    tokens, following = sequences(200, steps)
    last = net(Tensor(tokens)).asnumpy().argmax(1).reshape(-1, LENGTH)[:, -1]
    return float((last == following.reshape(-1, LENGTH)[:, -1]).mean())


if __name__ == "__main__":
    print(f"accuracy of the last token {main():.3f}")
