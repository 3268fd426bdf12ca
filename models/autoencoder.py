"""The deep autoencoder of the second-order literature (Hinton & Salakhutdinov, 2006; Martens, 2010)."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Tensor, nn


class Autoencoder(nn.Cell):
    """Images [B, ...] to reconstructions [B, pixels], before any sigmoid.

    The encoder has dense layers of widths[0] - ... - widths[-1], and the decoder mirrors them. ReLU lies between the
    layers; the code layer and the last layer are linear.
    """

    def __init__(self, widths: Sequence[int] = (784, 1000, 500, 250, 30)) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.encoder = _dense_stack(widths)
        self.decoder = _dense_stack(tuple(reversed(widths)))

    def construct(self, x: Tensor) -> Tensor:
        """Raw outputs of the last layer: a reconstruction for squared error, logits for cross-entropy."""
        return self.decoder(self.encoder(self.flatten(x)))


def autoencoder(widths: Sequence[int] = (784, 1000, 500, 250, 30)) -> Autoencoder:
    """The autoencoder of the given widths, by default 784-1000-500-250-30 and back."""
    return Autoencoder(widths)


def _dense_stack(widths: Sequence[int]) -> nn.SequentialCell:
    """Dense layers between consecutive widths, with a ReLU between layers and none at the end."""
    cells: list[nn.Cell] = []
    for inputs, outputs in zip(widths[:-1], widths[1:], strict=True):
        cells += [nn.Dense(inputs, outputs), nn.ReLU()]
    return nn.SequentialCell(cells[:-1])
